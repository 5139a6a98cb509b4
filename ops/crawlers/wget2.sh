#!/bin/sh
# Crawls one leased site with wget2, for `landfall-agent run --exec ops/crawlers/wget2.sh`. Copy it and
# change what you need. wget2 has no limit of pages; its time is limited by the agent.
#
# If libnss-wrapper is installed, wget2 connects to the address for which the scheduler gave a permit.
# Without it, wget2 resolves the site's name itself.
set -u

# Outside the output folder, in which the site chooses the names of files.
requests=../requests.csv

set -- --wait="$LANDFALL_REQUEST_INTERVAL_SECONDS" --max-threads=1 --tries=1 \
    --quota="$LANDFALL_MAX_BYTES" --user-agent="$LANDFALL_USER_AGENT" \
    --no-verbose --stats-site=csv:"$requests" "$LANDFALL_URL"
# With --level=0 wget2 would follow all links.
[ "$LANDFALL_MAX_DEPTH" -eq 0 ] || set -- --recursive --level="$LANDFALL_MAX_DEPTH" "$@"
[ -z "${LANDFALL_BIND-}" ] || set -- --bind-address="$LANDFALL_BIND" "$@"
if ls /usr/lib/*/libnss_wrapper.so >/dev/null 2>&1; then
    set -- env LD_PRELOAD=libnss_wrapper.so NSS_WRAPPER_HOSTS="$LANDFALL_HOSTS" wget2 "$@"
else
    set -- wget2 "$@"
fi
"$@"
code=$?

# Columns from the end of a line, because a URL may have commas: status 9th, decompressed size 5th.
if [ -e "$requests" ]; then
    awk -F, -v robots=",${LANDFALL_URL}robots.txt," '
        NR == 1 || index($0, robots) { next }
        $(NF - 8) == 200 { pages++; bytes += $(NF - 4) }
        $(NF - 8) >= 400 { failures++ }
        END { printf "{\"pages\": %d, \"bytes\": %.0f, \"failures\": %d}\n", pages, bytes, failures }
    ' "$requests" >"$LANDFALL_STATISTICS"
fi
# 8: the server answered a request with an error, which the statistics count.
[ "$code" -ne 8 ] || code=0
exit "$code"
