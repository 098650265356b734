#!/usr/bin/env bash
# Checks that the packages still build with the oldest Rust that they promise (`rust-version` in Cargo.toml), as far as the
# installed toolchains can tell:
#
# - no dependency demands a newer Rust;
# - the code uses no newer part of the standard library (clippy's incompatible_msrv, an error in Cargo.toml; `make lint`);
# - if that Rust is installed (`rustup toolchain install 1.89 --profile minimal`), it compiles everything. Only this step
#   finds a newer feature of the language.
set -euo pipefail
cd "$(dirname "$0")/../.."
msrv=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
cargo metadata --locked --format-version 1 | perl -MJSON::PP -e '
    my ($msrv) = @ARGV;
    sub number { my ($major, $minor, $patch) = split /\./, $_[0]; $major * 1e6 + $minor * 1e3 + ($patch // 0) }
    my @newer = grep { number($_->{rust_version} // "0.0") > number($msrv) } @{ decode_json(join "", <STDIN>)->{packages} };
    print "$_->{name} $_->{version} needs Rust $_->{rust_version}, and $msrv is promised\n" for @newer;
    exit(@newer ? 1 : 0);
' "$msrv"
if rustup toolchain list 2>/dev/null | grep -q "^$msrv"; then
    CARGO_TARGET_DIR=target/msrv cargo "+$msrv" check --workspace --locked
else
    echo "msrv: Rust $msrv is not installed; dependencies and the standard library were checked, the language was not"
fi
