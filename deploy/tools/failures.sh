#!/usr/bin/env bash
# `make failures`: every fault of the store under every policy, for longer than the tests do it, and the table of what came
# of it in docs/failures.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
page=docs/failures.md
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
FAILURES=$folder ${CARGO:-cargo} test --test it -- faults:: --test-threads 2
{
  sed '/<!-- measured/q' "$page"
  echo
  echo "| fault | policy | before: 200 / 429 / 503 | during | behind | p99 before, ms | p99 in the first second, ms | p99 then, ms | used during | used behind | over the law, permits | back after, s |"
  echo "|---|---|---|---|---|---|---|---|---|---|---|---|"
  cat "$folder"/*
  echo
  sed -n '/<!-- end of what was measured/,$p' "$page"
} > "$folder.new"
mv "$folder.new" "$page"
