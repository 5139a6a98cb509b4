#!/usr/bin/env bash
# Installs the crawlers that `lab bench --only crawl` compares ours with: the library `spider` (built here, from crates.io), wget2 (a Debian
# package) and Scrapy (from PyPI, in an environment of its own). Says what first; does nothing where nothing is missing. All but
# wget2 lies under the target folder.
#
#   ops/peers.sh            install what is missing
#   ops/peers.sh --dry-run  only say what is missing
set -euo pipefail
cd "$(dirname "$0")/.."

dry_run=no
case "${1-}" in
'') ;;
--dry-run) dry_run=yes ;;
*)
    echo "peers: unknown argument '$1': only --dry-run is known" >&2
    exit 2
    ;;
esac

# A version that is known to run; the benchmark's figures are of these.
scrapy=scrapy==2.19.0
peers=${CARGO_TARGET_DIR:-target}/peers

say() {
    echo "peers: $1"
    [ "$dry_run" = no ]
}

# One that cannot be had is no reason to go without the others: its row says so.
failed=0

if { [ ! -x "$peers/peer-spider" ] || [ ops/peers/spider/Cargo.toml -nt "$peers/peer-spider" ]; } && say "building peer-spider with the library spider, some minutes"; then
    if CARGO_TARGET_DIR="$(realpath -m "$peers")/spider" cargo build --release --locked --manifest-path ops/peers/spider/Cargo.toml; then
        cp "$peers/spider/release/peer-spider" "$peers/peer-spider"
    else
        failed=1
    fi
fi

if ! command -v wget2 >/dev/null 2>&1 && say "installing wget2"; then
    if [ "$(id -u)" = 0 ]; then apt-get install -y wget2; else sudo apt-get install -y wget2; fi || failed=1
fi

if [ ! -x "$peers/scrapy/bin/scrapy" ] && say "installing $scrapy in $peers/scrapy"; then
    python3 -m venv "$peers/scrapy" && "$peers/scrapy/bin/pip" install --quiet "$scrapy" || failed=1
fi

[ "$failed" = 0 ] || echo "peers: something could not be installed; the benchmark goes without it" >&2
exit "$failed"
