#!/usr/bin/env bash
# Installs the crawlers with which `lab bench --only crawl` compares Landfall's crawler: the library
# `spider` (from crates.io, built here), wget2 (a Debian package) and Scrapy (from PyPI, in its own
# environment). Announces each installation; does nothing if all are installed. Everything except
# wget2 is installed below the target folder.
#
#   ops/peers.sh                install what is missing
#   ops/peers.sh --only scrapy  install only one of spider, wget2 and scrapy
#   ops/peers.sh --dry-run      only print what is missing
set -euo pipefail
cd "$(dirname "$0")/.."

dry_run=no
only=all
while [ $# -gt 0 ]; do
    case "$1" in
    --dry-run) dry_run=yes ;;
    --only)
        only=${2-}
        case "$only" in
        spider | wget2 | scrapy) ;;
        *)
            echo "peers: --only is spider, wget2 or scrapy, not '$only'" >&2
            exit 2
            ;;
        esac
        shift
        ;;
    *)
        echo "peers: unknown argument '$1': --dry-run and --only NAME are known" >&2
        exit 2
        ;;
    esac
    shift
done

# The version with which the benchmark's published figures were measured.
scrapy=scrapy==2.19.0
peers=${CARGO_TARGET_DIR:-target}/peers

wanted() {
    [ "$only" = all ] || [ "$only" = "$1" ]
}

say() {
    echo "peers: $1"
    [ "$dry_run" = no ]
}

# If one crawler cannot be installed, the others are installed anyway. The benchmark then says in
# the crawler's row that it is missing.
failed=0

if wanted spider && { [ ! -x "$peers/peer-spider" ] || [ ops/peers/spider/Cargo.toml -nt "$peers/peer-spider" ]; } && say "building peer-spider with the library spider, some minutes"; then
    if CARGO_TARGET_DIR="$(realpath -m "$peers")/spider" cargo build --release --locked --manifest-path ops/peers/spider/Cargo.toml; then
        cp "$peers/spider/release/peer-spider" "$peers/peer-spider"
    else
        failed=1
    fi
fi

if wanted wget2 && ! command -v wget2 >/dev/null 2>&1 && say "installing wget2"; then
    if [ "$(id -u)" = 0 ]; then apt-get install -y wget2; else sudo apt-get install -y wget2; fi || failed=1
fi

if wanted scrapy && [ ! -x "$peers/scrapy/bin/scrapy" ] && say "installing $scrapy in $peers/scrapy"; then
    python3 -m venv "$peers/scrapy" && "$peers/scrapy/bin/pip" install --quiet --no-compile --timeout 20 --retries 1 "$scrapy" || failed=1
fi

[ "$failed" = 0 ] || echo "peers: an installation failed; benchmark and tests leave that crawler out" >&2
exit "$failed"
