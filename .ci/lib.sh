# Shared by the scripts in this folder; source it from the repository root's .ci/.
# Sets: root (the repository), cache (kept between runs, outside the repository).

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${CONVOKE_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/convoke-oracles}
mkdir -p "$cache"
cd "$root"
export PATH="$cache/tools/bin:$PATH" PYTHONDONTWRITEBYTECODE=1

# One builder for docker and both versions of Compose, so that each finds the layers of the others.
export DOCKER_BUILDKIT=0 COMPOSE_DOCKER_CLI_BUILD=0

die() { echo "$*" >&2; exit 1; }

# The commit that is checked, from which follows what is sampled.
commit() { git -c safe.directory='*' rev-parse HEAD 2>/dev/null || echo none; }

# The binary that the scripts run. The whole of .ci/run takes it out of the image, which it makes all the same: a release
# build takes minutes. One step alone, or a script, has cargo build it.
product() {
  if [ -z "${CONVOKE_PRODUCT:-}" ]; then
    cargo build --quiet --release
    CONVOKE_PRODUCT=$root/target/release/convoke
  fi
  echo "$CONVOKE_PRODUCT"
}

docker_image() (
  .ci/images
  docker build --quiet --tag convoke:latest . >/dev/null
)

# image_binary FILE: copies the binary out of the image.
image_binary() {
  local container
  container=$(docker create convoke:latest)
  docker cp --quiet "$container:/usr/local/bin/convoke" "$1"
  docker rm "$container" >/dev/null
}

# need COMMAND PACKAGE...: installs the Debian packages unless the command is there.
need() { command -v "$1" >/dev/null || install_packages "${@:2}"; }

# One at a time: a step may need packages while the preparations install theirs.
install_packages() (
  [ "$(id -u)" = 0 ] || die "missing: install the packages $*"
  exec {lock}>"$cache/packages.lock"
  flock "$lock"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends "$@" >/dev/null
)

oracle_python() { python_with fixtures/requirements.txt; }

# The Python of a virtual environment with exactly the packages that a file pins; made once per version of it.
python_with() {
  local pins=$root/$1 venv lock
  venv=$cache/venv-$(sha256sum "$pins" | cut -c1-12)
  exec {lock}>"$venv.lock"
  flock "$lock"
  if [ ! -e "$venv/complete" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv" || { install_packages python3-venv; python3 -m venv "$venv"; }
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$pins"
    touch "$venv/complete"
  fi >&2
  exec {lock}>&-
  echo "$venv/bin/python"
}

compose_deb=docker-compose_2.26.1-4_amd64.deb
compose_sha256=47681197cb2b1ab88206b42a1a92fc75f50d9530a6322d03494a473eed0408ea

# use_compose 2|1: sets the command `compose` to that version of Compose. Version 2 is the installed plugin, else
# Debian's, unpacked into the cache; version 1 is Debian 12's package docker-compose.
use_compose() {
  local plugins=$cache/compose-$compose_sha256
  case $1 in
    1)
      need docker-compose docker-compose
      [[ $(docker-compose version --short) = 1.* ]] || die "docker-compose is not version 1; Debian 12 has 1.29"
      compose=(docker-compose)
      ;;
    2)
      compose=(docker compose)
      docker compose version >/dev/null 2>&1 && return
      [ -e "$plugins/cli-plugins/docker-compose" ] || fetch_compose "$plugins"
      compose=(env "DOCKER_CONFIG=$plugins" docker compose)
      ;;
  esac
}

# fetch_compose FOLDER: a folder for DOCKER_CONFIG with the plugin.
fetch_compose() {
  local scratch
  scratch=$(mktemp -d -p "$cache")
  curl --silent --show-error --fail --retry 3 --max-time 120 --output "$scratch/deb" \
    "http://deb.debian.org/debian/pool/main/d/docker-compose/$compose_deb" || die "cannot fetch $compose_deb"
  echo "$compose_sha256  $scratch/deb" | sha256sum --check --quiet >&2 || die "$compose_deb is not what was pinned"
  dpkg-deb -x "$scratch/deb" "$scratch/root"
  mkdir -p "$1/cli-plugins"
  # Wherever the package puts it.
  find "$scratch/root" -type f -name docker-compose -exec mv {} "$1/cli-plugins/" \;
  rm -rf "$scratch"
}
