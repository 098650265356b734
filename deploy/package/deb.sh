#!/usr/bin/env bash
# Builds target/package/paceway_VERSION_ARCH.deb of the static binary, and checks it with lintian and systemd-analyze where
# these are installed. BINARY=FILE takes another binary.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/package/common.sh
needs dpkg-deb dpkg
binary=$(static_binary)
arch=$(dpkg --print-architecture)
# A pre-release sorts before its release: 1.0.0~rc.1.
debian_version=${version/-/\~}-1

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
put() { # MODE FILE PLACE
  install -D -m "$1" "$2" "$root/$3"
}
compressed() { # PLACE; the text is stdin
  mkdir -p "$root/$(dirname "$1")"
  gzip -9n >"$root/$1"
}
put 755 "$binary" usr/bin/paceway
put 644 deploy/package/deb/paceway.yaml etc/paceway/paceway.yaml
put 644 deploy/systemd/paceway.service usr/lib/systemd/system/paceway.service
put 644 deploy/systemd/paceway.socket usr/lib/systemd/system/paceway.socket
put 644 deploy/package/deb/copyright usr/share/doc/paceway/copyright
put 644 config/paceway.yaml usr/share/doc/paceway/examples/paceway.yaml
put 644 deploy/package/deb/lintian-overrides usr/share/lintian/overrides/paceway
for shell in bash:bash-completion/completions/paceway zsh:zsh/vendor-completions/_paceway fish:fish/vendor_completions.d/paceway.fish; do
  mkdir -p "$root/usr/share/$(dirname "${shell#*:}")"
  "$binary" completions "${shell%%:*}" >"$root/usr/share/${shell#*:}"
done
"$binary" man | compressed usr/share/man/man1/paceway.1.gz
compressed usr/share/doc/paceway/changelog.gz <CHANGELOG.md
maintainer='Paceway <paceway@users.noreply.github.com>'
printf 'paceway (%s) stable; urgency=medium\n\n  * See changelog.gz.\n\n -- %s  %s\n' \
  "$debian_version" "$maintainer" "$(LC_ALL=C date -Rud "@$epoch")" |
  compressed usr/share/doc/paceway/changelog.Debian.gz

mkdir "$root/DEBIAN"
install -m 755 deploy/package/deb/{postinst,prerm,postrm} "$root/DEBIAN"
echo /etc/paceway/paceway.yaml >"$root/DEBIAN/conffiles"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
cat >"$root/DEBIAN/control" <<TXT
Package: paceway
Version: $debian_version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude DEBIAN "$root" | cut -f1)
Recommends: ca-certificates
Section: net
Priority: optional
Homepage: https://github.com/paceway/paceway
Description: HTTP gateway that paces calls to APIs that throttle
 Paceway holds each request until its slot comes, up to a wait budget, and
 forwards it then. If the slot would come too late, it answers an honest 429
 at once. Any number of gateways share one quota through Redis.
TXT
find "$root" -exec touch -hd "@$epoch" {} +
mkdir -p "$out"
package=$out/paceway_${debian_version}_$arch.deb
SOURCE_DATE_EPOCH=$epoch dpkg-deb --root-owner-group -Zxz --build "$root" "$package"

if command -v lintian >/dev/null; then
  # Lintian wants no root; its rules are of Debian's own archive, except where deb/lintian-overrides says why.
  lintian --allow-root --fail-on error,warning "$package"
else
  echo 'deb: NOT CHECKED by lintian: apt-get install lintian' >&2
fi
if command -v systemd-analyze >/dev/null; then
  systemd-analyze security --offline=true --threshold=20 deploy/systemd/paceway.service | tail -1
else
  echo 'deb: exposure of the unit NOT CHECKED: apt-get install systemd' >&2
fi
echo "$package: $(stat -c %s "$package") octets"
