#!/usr/bin/env bash
# Builds the image paceway:VERSION from scratch with the static binary, runs `paceway --version` in it, and writes it to
# target/package/paceway-VERSION-ARCH.tar (`docker load -i` or `podman load -i` reads it). BINARY=FILE takes another binary.
#
# Nothing of it needs a daemon, a network or a file system of layers; root, or a user with sub-ids, can do it.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/package/common.sh
needs buildah buildah
binary=$(static_binary)
authorities=/etc/ssl/certs/ca-certificates.crt
[ -f "$authorities" ] || stop "$authorities is missing: apt-get install ca-certificates"

folder=$(mktemp -d)
mkdir "$folder/context"
storage=(--storage-driver vfs --root "$folder/storage" --runroot "$folder/run")
working=
cleanup() {
  [ -z "$working" ] || buildah "${storage[@]}" rm "$working" >/dev/null || true
  rm -rf "$folder"
}
trap cleanup EXIT
install -m 755 "$binary" "$folder/context/paceway"
install -m 644 "$authorities" "$folder/context"

name=paceway:$version
# The format of Docker has health checks; that of OCI has none.
buildah "${storage[@]}" build --quiet --isolation chroot --format docker --timestamp "$epoch" \
  --label "org.opencontainers.image.version=$version" --label org.opencontainers.image.licenses=Apache-2.0 \
  --label org.opencontainers.image.source=https://github.com/paceway/paceway \
  --tag "$name" --file deploy/package/Containerfile "$folder/context"
working=$(buildah "${storage[@]}" from "$name")
said=$(buildah "${storage[@]}" run --isolation chroot "$working" /paceway --version)
[ "$said" = "paceway $version" ] || stop "the binary in the image says: $said"

file=$out/paceway-$version-$(uname -m).tar
mkdir -p "$out"
rm -f "$file"
buildah "${storage[@]}" push --quiet "$name" "docker-archive:$file:$name"
echo "$file: $(stat -c %s "$file") octets; in the image: $said"
