#!/usr/bin/env bash
# Builds a binary that needs no library of its system, and proves that: target/package/paceway-VERSION-TARGET.tar.gz.
#
#   deploy/package/binary.sh [TARGET]     default: musl where its standard library is installed, otherwise glibc
#
# `rustup target add x86_64-unknown-linux-musl` installs that library; musl also needs its C compiler (musl-tools).
# A static glibc finds names by /etc/hosts and DNS alone, and asks no other service of /etc/nsswitch.conf.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/package/common.sh

machine=$(uname -m)
target=${1:-$machine-unknown-linux-musl}
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
  [ $# -eq 0 ] || stop "the standard library of $target is missing: rustup target add $target"
  echo "binary: no musl standard library here (rustup target add $target); a static binary with glibc instead" >&2
  target=$machine-unknown-linux-gnu
fi
case $target in *-musl) needs musl-gcc musl-tools ;; esac

# With --target, the flags are those of the binary alone, and not of the macros that the compiler loads.
RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" CARGO_PROFILE_DIST_STRIP=symbols \
  "${CARGO:-cargo}" build --profile dist --locked --bin paceway --target "$target"
built=$target_dir/$target/dist/paceway
is_static "$built"

mkdir -p "$out/$target"
install -m 755 "$built" "$out/$target/paceway"
name=paceway-$version-$target
tar --create --gzip --file "$out/$name.tar.gz" --owner 0 --group 0 --numeric-owner --sort name --mtime "@$epoch" \
  --transform "s,^\(.*/\)\?,$name/," "$out/$target/paceway" README.md LICENSE CHANGELOG.md
echo "$out/$name.tar.gz: $(stat -c %s "$out/$target/paceway") octets of binary"
