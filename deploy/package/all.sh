#!/usr/bin/env bash
# `make package`: builds each package that this machine can, into target/package, and says at the end which parts failed and
# what they lack. Ends with 1 when one failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
failed=()
for part in ${PARTS:-binary deb image chart sbom}; do
  echo "== $part"
  deploy/package/"$part".sh || failed+=("$part")
done
[ ${#failed[@]} -eq 0 ] && exit 0
echo "NOT BUILT: ${failed[*]}; the last line of each part above says why" >&2
exit 1
