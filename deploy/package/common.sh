# Functions and names of the scripts of this folder, which source it from the root of the repository.

# Ends the script with a message.
stop() {
  echo "$(basename "$0" .sh): $*" >&2
  exit 1
}

# Ends the script when a program is missing, with the Debian package that has it.
needs() { # PROGRAM PACKAGE
  command -v "$1" >/dev/null || stop "$1 is missing: apt-get install $2"
}

# Ends the script when a binary asks for a loader or a library.
is_static() { # FILE
  # `readelf -d` of a static binary names no library; `-l` names no loader.
  local asked
  asked=$(LC_ALL=C readelf -ld "$1" | grep -E 'NEEDED|program interpreter' || true)
  [ -z "$asked" ] || stop "$1 is not static: $asked"
}

version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)
[ -n "$version" ] || stop 'no version in Cargo.toml'
target_dir=${CARGO_TARGET_DIR:-target}
out=$target_dir/package
# The files of a package have the date of the commit, so that two builds of one commit are equal. It is not exported: Cargo
# would compile the C libraries again after each commit.
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}

# The newest static binary of this machine's kind, or that of $BINARY.
static_binary() {
  local found=${BINARY:-}
  for libc in musl gnu; do
    [ -n "$found" ] || { [ -x "$out/$(uname -m)-unknown-linux-$libc/paceway" ] && found=$out/$(uname -m)-unknown-linux-$libc/paceway; } || true
  done
  [ -n "$found" ] || stop 'no static binary yet: deploy/package/binary.sh'
  is_static "$found"
  echo "$found"
}
