#!/usr/bin/env bash
# rustc for fuzz.sh: instruments our packages and the parsers among the dependencies for libFuzzer, and builds the other
# dependencies as usual.
set -euo pipefail
coverage=(-Cpasses=sancov-module)
for what in level=4 inline-8bit-counters pc-table trace-compares; do
  coverage+=("-Cllvm-args=-sanitizer-coverage-$what")
done
case " $* " in
  # Opens private functions to the targets.
  *' --crate-name paceway '* | *' --crate-name paceway_limit '*) exec "$@" "${coverage[@]}" --cfg fuzzing ;;
  *' --crate-name granit_parser '* | *' fuzz_targets/'*) exec "$@" "${coverage[@]}" ;;
  *) exec "$@" ;;
esac
