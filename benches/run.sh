#!/usr/bin/env bash
# `make bench` and `make instructions`: builds the gateway and the program that measures it, and starts that. `bench`
# measures the build of packages (profile `profiling`: `dist` with line tables); `gate` counts a build that takes
# less time (profile `counted`: without optimization across crates).
#   benches/run.sh bench             ROUNDS, DURATION (seconds of load in a round) and ONLY (some parts) can be set
#   benches/run.sh gate [record]     compares user instructions per request with benches/instructions.txt, or records them
#   benches/run.sh mounted           what a request costs in an axum program that mounts the proxy, beside the gateway
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}

profile=profiling
[ "${1:-bench}" = bench ] || profile=counted
# A build with tests and benches gives dependencies more features; this builds the program that users get. `mounted`
# compares two programs of one build.
mounted=()
[ "${1:-bench}" != mounted ] || mounted=(--example mounted)
cargo build --locked --profile "$profile" --bin paceway "${mounted[@]}"
if [ "${1:-bench}" = bench ] && [[ -z "${ONLY:-}" || "$ONLY" = *fleet* ]]; then
  # The gateways of the part `fleet` are a load, which is not measured.
  cargo build --locked --profile counted --example fleet
fi
cargo build --locked --release --manifest-path benches/cost/Cargo.toml --target-dir "$target/cost"
cost=$target/cost/release/paceway-cost
gateway=$target/$profile/paceway

case ${1:-bench} in
  bench) exec "$cost" bench "$gateway" "$PWD" ;;
  gate) exec "$cost" gate "$gateway" benches/instructions.txt ${2:+record} ;;
  mounted) exec "$cost" mounted "$gateway" "$target/$profile/examples/mounted" ;;
  *) echo "usage: benches/run.sh bench | gate [record] | mounted" >&2; exit 2 ;;
esac
