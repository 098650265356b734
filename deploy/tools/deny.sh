#!/usr/bin/env bash
# Runs cargo deny. The advisory database is downloaded; if that fails, this script says so and checks the rest.
set -euo pipefail
cargo deny --all-features check --hide-inclusion-graph bans licenses sources
if cargo deny fetch db >/dev/null 2>&1 || [ "${PACEWAY_ADVISORIES:-}" = must ]; then
  cargo deny --all-features check --hide-inclusion-graph advisories
else
  echo 'advisories: NOT CHECKED, the advisory database cannot be reached from here (PACEWAY_ADVISORIES=must makes this an error)' >&2
fi
