# Shared by the scripts in this folder; source it from the repository root's .ci/.
# Sets: root (the repository), cache (kept between runs, outside the repository).

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${CONVOKE_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/convoke-oracles}
mkdir -p "$cache"
cd "$root"
export PATH="$cache/tools/bin:$PATH" PYTHONDONTWRITEBYTECODE=1

die() { echo "$*" >&2; exit 1; }

# One build for every script: building packages one by one would choose other features of what they share, and
# compile the kernels anew each time.
release_build() { cargo build --quiet --release --workspace --bins --examples; }

# need COMMAND PACKAGE...: installs the Debian packages unless the command is there.
need() { command -v "$1" >/dev/null || install_packages "${@:2}"; }

install_packages() {
  [ "$(id -u)" = 0 ] || die "missing: install the packages $*"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends "$@" >/dev/null
}

# The Python of a virtual environment with exactly the pinned packages; made once per version of the pins.
oracle_python() {
  local pins=$root/fixtures/requirements.txt venv
  venv=$cache/venv-$(sha256sum "$pins" | cut -c1-12)
  if [ ! -e "$venv/complete" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv" || { install_packages python3-venv; python3 -m venv "$venv"; }
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$pins"
    touch "$venv/complete"
  fi >&2
  echo "$venv/bin/python"
}

# Compose v2 where it is installed, else docker-compose 1.29.
compose() {
  if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi
}
