#!/usr/bin/env bash
# Lists the crates of the binary, with versions, licences and hashes: target/package/paceway-VERSION.cdx.json (CycloneDX 1.5).
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/package/common.sh
command -v cargo-cyclonedx >/dev/null || stop 'cargo-cyclonedx is missing: cargo install --locked cargo-cyclonedx@0.5.9'
trap 'rm -f sbom-of-*.json crates/*/sbom-of-*.json' EXIT
# The list covers all targets, because a release has several, and leaves the dependencies of tests and benches out.
cargo cyclonedx --quiet --format json --spec-version 1.5 --target all --no-build-deps --override-filename sbom-of-paceway
mkdir -p "$out"
file=$out/paceway-$version.cdx.json
# Paths of this machine are no part of a release.
sed "s,path+file://$PWD,path+file:///paceway,g" sbom-of-paceway.json >"$file"
echo "$file: $(grep -c '"purl"' "$file") components"
