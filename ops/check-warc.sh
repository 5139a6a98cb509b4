#!/usr/bin/env bash
# Checks WARC files with an independent reader: `warcio check` verifies every digest, and `warcio
# index` reads every record.
#
#   ops/check-warc.sh FILE...   check these files; fail if one is invalid
#
# Installs warcio from PyPI into the target folder if it is missing.
set -euo pipefail

if [ $# -eq 0 ]; then
    echo "check-warc: name the files: ops/check-warc.sh FILE..." >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
venv="${CARGO_TARGET_DIR:-$root/target}/warcio/venv"
if [ ! -x "$venv/bin/warcio" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" --quiet install 'warcio==1.8.1'
fi
records=0
for file in "$@"; do
    # `warcio check` prints only errors.
    "$venv/bin/warcio" check "$file"
    found=$("$venv/bin/warcio" index -f offset,warc-type,warc-target-uri "$file" | wc -l)
    records=$((records + found))
done
echo "check-warc: $# files with $records records are valid"
