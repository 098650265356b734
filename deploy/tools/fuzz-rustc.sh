#!/usr/bin/env bash
# rustc for fuzz.sh: what is ours and what parses for us tells libFuzzer where it has been; the rest of the tree is
# built as it is.
set -euo pipefail
coverage=(-Cpasses=sancov-module)
for what in level=4 inline-8bit-counters pc-table trace-compares; do
  coverage+=("-Cllvm-args=-sanitizer-coverage-$what")
done
case " $* " in
  # The doors for targets to what is private.
  *' --crate-name paceway '* | *' --crate-name paceway_limit '*) exec "$@" "${coverage[@]}" --cfg fuzzing ;;
  *' --crate-name granit_parser '* | *' fuzz_targets/'*) exec "$@" "${coverage[@]}" ;;
  *) exec "$@" ;;
esac
