#!/usr/bin/env bash
# `make bench`: decisions, routes, and what a request costs. Writes nothing into the repository but what cargo builds.
set -euo pipefail
cd "$(dirname "$0")/.."

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export CRITERION_HOME=$tmp/criterion

for bench in decide route; do
  echo "measuring: $bench" >&2
  cargo bench --quiet --profile profiling --bench "$bench" -- --noplot --output-format bencher \
    --warm-up-time 0.5 --measurement-time 2 --sample-size 20 | tee -a "$tmp/times" >&2
done
benches/request.sh >"$tmp/requests"

awk '
  # test decide/memory, admitted ... bench:         242 ns/iter (+/- 8)
  match($0, / \.\.\. bench: +[0-9,]+ ns/) {
    name = substr($0, 6, RSTART - 6)
    ns = substr($0, RSTART, RLENGTH); gsub(/[^0-9]/, "", ns)
    split(name, part, "/")
    if (part[1] != group) printf "\n%-28s %10s %12s\n", "a " (group = part[1]), "ns", "per second"
    sub(/^[^\/]*\//, "", name)
    printf "%-28s %10d %12d\n", name, ns, 1e9 / ns
  }' "$tmp/times"
cat "$tmp/requests"
