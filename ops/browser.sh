#!/usr/bin/env bash
# Installs what the dashboard's test needs to control a browser: playwright-core, and axe-core,
# which finds barriers for people with disabilities. Both are installed from the npm registry, in
# fixed versions, into the target folder. Does nothing if both are installed.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(playwright-core@1.65.1 axe-core@4.14.1)
folder=${CARGO_TARGET_DIR:-target}/browser

if [ -e "$folder/node_modules/playwright-core" ] && [ -e "$folder/node_modules/axe-core" ]; then
    exit 0
fi
echo "browser: installing ${packages[*]} in $folder"
mkdir -p "$folder"
if ! npm install --prefix "$folder" --no-save --no-audit --no-fund --loglevel=error --fetch-retries=1 "${packages[@]}"; then
    echo "browser: the installation failed; the dashboard's test in a browser is skipped" >&2
    exit 1
fi
