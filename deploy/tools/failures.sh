#!/usr/bin/env bash
# `make failures`: runs every fault of the store under each policy, for longer than the tests do, and writes the results
# into the table of docs/failures.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
page=docs/failures.md
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/lines"
# One scenario after the other, because delays are measured.
FAILURES=$folder/lines ${CARGO:-cargo} test --test it -- faults:: --test-threads 1
{
  sed '/<!-- measured/q' "$page"
  echo
  echo "| servers | fault | policy | during: 200/429/503 | after | p99 before, ms | p99 in the first second, ms | p99 then, ms | used during, % | used after, % | above the rule, permits | back in, s |"
  echo "|---|---|---|---|---|---|---|---|---|---|---|---|"
  cat "$folder"/lines/*
  echo
  sed -n '/<!-- end of what was measured/,$p' "$page"
} | sed '/^| /{s/ | /|/g;s/^| /|/;s/ |$/|/}' > "$folder/page"
cat "$folder/page" > "$page"
