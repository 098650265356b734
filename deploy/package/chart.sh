#!/usr/bin/env bash
# Lints, renders and checks the Helm chart and the manifests of deploy/kubernetes, and writes target/package/paceway-VERSION.tgz.
# BINARY=FILE is the paceway that reads the rendered configurations; default: the newest that was built.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/package/common.sh
needs python3 python3
python3 -c 'import ensurepip, venv' 2>/dev/null || stop 'the venv module of Python is missing: apt-get install python3-venv'
PACEWAY=${BINARY:-$(ls -t "$target_dir"/{debug,release,*/release}/paceway 2>/dev/null | head -1 || true)}
[ -n "$PACEWAY" ] || stop 'no paceway yet: cargo build'
export PACEWAY
python=$out/python
if ! cmp -s deploy/package/requirements.txt "$python/done"; then
  rm -rf "$python"
  python3 -m venv "$python"
  "$python/bin/pip" install -q --disable-pip-version-check -r deploy/package/requirements.txt
  cp deploy/package/requirements.txt "$python/done"
fi
"$python/bin/python" deploy/package/chart.py "$out"
