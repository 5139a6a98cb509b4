#!/usr/bin/env bash
# Checks WARC files with somebody else's reader: `warcio check` verifies every digest, `warcio index` reads every record.
#
#   ops/check-warc.sh FILE...   check these files; fails when one is wrong
#
# Installs warcio from PyPI into the target folder when it is lacking.
set -euo pipefail

if [ $# -eq 0 ]; then
    echo "check-warc: say which files: ops/check-warc.sh FILE..." >&2
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
    # It prints only what is wrong; with -v it also says what it passed.
    "$venv/bin/warcio" check "$file"
    found=$("$venv/bin/warcio" index -f offset,warc-type,warc-target-uri "$file" | wc -l)
    records=$((records + found))
done
echo "check-warc: $# files with $records records are right"
