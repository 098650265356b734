#!/usr/bin/env bash
# Installs missing programs: each argument is COMMAND:PACKAGE (of Debian or Ubuntu), or FILE:PACKAGE with a whole path.
set -euo pipefail
missing=()
for pair in "$@"; do
  [[ $pair == /* && -e ${pair%%:*} ]] && continue
  command -v "${pair%%:*}" >/dev/null || [ -x "/usr/sbin/${pair%%:*}" ] || missing+=("${pair##*:}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  cat >&2 <<TXT
These are needed and missing: ${missing[*]}
There is no apt-get here to install them with. Install them with the package manager of this system, such as
  brew install redis prometheus libfaketime     (macOS)
  dnf install redis prometheus libfaketime      (Fedora)
and run the command again.
TXT
  exit 1
fi
sudo=''
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "run this as root: apt-get install ${missing[*]}" >&2; exit 1; }
  sudo=sudo
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# The packages would start servers; the tests start their own, so those of the system stay stopped.
$sudo env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
