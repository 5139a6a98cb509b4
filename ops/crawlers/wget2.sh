#!/bin/sh
# Crawls one leased site with wget2, for `landfall-agent run --exec ops/crawlers/wget2.sh`. Copy
# this script and change what you need. wget2 cannot limit the number of pages. The agent limits the
# time.
#
# If libnss-wrapper is installed, wget2 connects to the address for which the scheduler granted a
# permit. Otherwise wget2 resolves the site's name itself.
set -u

# The log of requests is outside the output folder, because the site chooses the names of files in
# that folder.
requests=../requests.csv

set -- --wait="$LANDFALL_REQUEST_INTERVAL_SECONDS" --max-threads=1 --tries=1 \
    --quota="$LANDFALL_MAX_BYTES" --user-agent="$LANDFALL_USER_AGENT" \
    --no-verbose --stats-site=csv:"$requests" "$LANDFALL_URL"
# If the depth is 0, use no recursion: wget2 takes `--level=0` as no limit.
[ "$LANDFALL_MAX_DEPTH" -eq 0 ] || set -- --recursive --level="$LANDFALL_MAX_DEPTH" "$@"
[ -z "${LANDFALL_BIND-}" ] || set -- --bind-address="$LANDFALL_BIND" "$@"
if ls /usr/lib/*/libnss_wrapper.so >/dev/null 2>&1; then
    set -- env LD_PRELOAD=libnss_wrapper.so NSS_WRAPPER_HOSTS="$LANDFALL_HOSTS" wget2 "$@"
else
    set -- wget2 "$@"
fi
"$@"
code=$?

# Count the columns from the end of the line, because a URL may contain commas. The status is the
# 9th column from the end, the decompressed size the 5th.
if [ -e "$requests" ]; then
    awk -F, -v robots=",${LANDFALL_URL}robots.txt," '
        NR == 1 || index($0, robots) { next }
        $(NF - 8) == 200 { pages++; bytes += $(NF - 4) }
        $(NF - 8) >= 400 { failures++ }
        END { printf "{\"pages\": %d, \"bytes\": %.0f, \"failures\": %d}\n", pages, bytes, failures }
    ' "$requests" >"$LANDFALL_STATISTICS"
fi
# Exit code 8 means that a response was an error. The statistics already count such errors.
[ "$code" -ne 8 ] || code=0
exit "$code"
