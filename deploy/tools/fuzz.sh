#!/usr/bin/env bash
# Runs the fuzz targets: each on its seeds and on the inputs that earlier runs kept in target/fuzz/corpus. An input that
# breaks a promise stops the run and is left in target/fuzz/found.
#   deploy/tools/fuzz.sh [RUNS] [TARGET...]     inputs a target (default: 20 seconds a target); default: all targets
# Neither nightly nor cargo-fuzz is needed: every rustc has the pass that libFuzzer steers by.
set -euo pipefail
cd "$(dirname "$0")/../.."
bound=-max_total_time=20
if [[ "${1:-}" =~ ^[0-9]+$ ]]; then
  bound=-runs=$1
  shift
fi
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cd fuzz/fuzz_targets && printf '%s\n' *.rs | sed 's/\.rs$//')

# In the target directory of the gateway, whose tests have compiled most dependencies with the same settings. The packages
# that the wrapper instruments have settings of their own (fuzz/Cargo.toml), so that nothing else uses them.
RUSTC_WRAPPER=$PWD/deploy/tools/fuzz-rustc.sh cargo build --manifest-path fuzz/Cargo.toml \
  --target-dir target "${targets[@]/#/--bin=}"

mkdir -p target/fuzz/found
for target in "${targets[@]}"; do
  corpus=target/fuzz/corpus/$target
  mkdir -p "$corpus"
  words=()
  [ ! -f "fuzz/$target.dict" ] || words=("-dict=fuzz/$target.dict")
  # The longest input: a path or a header is short, a configuration file is longer.
  longest=256
  [ "$target" != throttle ] || longest=512
  [ "$target" != config ] || longest=2048
  log=target/fuzz/$target.log
  if ! "target/debug/$target" "$bound" "-seed=${SEED:-1}" -max_len=$longest -timeout=10 \
    "-artifact_prefix=target/fuzz/found/$target-" "${words[@]}" "$corpus" "fuzz/seeds/$target" >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    echo "fuzz: $target: an input that breaks it is in target/fuzz/found" >&2
    exit 1
  fi
  grep '^Done' "$log" | sed "s/^Done/fuzz: $target: no finding in/"
done
