# A cluster of containers, as the compose file has it; source it after lib.sh. It is taken down when the script ends.
# Sets: scratch (a folder, gone at the end) and shared (one in it that containers may write).

need jq jq
export COMPOSE_PROJECT_NAME=convoke-ci-$$
scratch=$(mktemp -d)
# What containers write; their user is not ours.
shared=$scratch/shared
mkdir -m 0777 "$shared"
chmod 0711 "$scratch"
use_compose 2
cleanup() { "${compose[@]}" down --volumes --remove-orphans --timeout 10 >/dev/null 2>&1 || true; rm -rf "$scratch"; }
trap cleanup EXIT

# make_image: builds the image as the compose file says.
make_image() {
  .ci/images
  "${compose[@]}" build coordinator >"$scratch/build" 2>&1 || { tail -n 40 "$scratch/build"; die "no image"; }
}

# up [WORKERS]: starts a coordinator and three workers, or as many as that; workers beyond are stopped.
up() {
  "${compose[@]}" config --quiet
  "${compose[@]}" up -d --no-build --scale worker="${1:-3}" >"$scratch/up" 2>&1 || { tail -n 20 "$scratch/up"; logs_and_die "up failed"; }
}

# down [FLAG...]: takes it down.
down() { "${compose[@]}" down --timeout 10 "$@" >"$scratch/down" 2>&1 || { cat "$scratch/down"; die "down failed"; }; }

# client COMMAND...: as a user of the client service would.
client() { "${compose[@]}" run --rm -T client "$@"; }

logs_and_die() { "${compose[@]}" logs --tail 40 2>&1 | tail -n 120; "${compose[@]}" ps; die "$*"; }
