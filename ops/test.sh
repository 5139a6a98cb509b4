#!/usr/bin/env bash
# Builds and runs every test; `make test` runs this script. At the end it prints the test runner's
# `test result:` lines, their sum, and the times.
#
# Most tests wait more than they compute, so several lanes run at the same time: the end-to-end
# tests that measure no times (`busy::`), the other integration tests, and the unit tests. Tests that
# measure times (`quiet::`) run afterwards, at most two at once. A test that printed `skipped:` or
# `void:` counts as skipped.
set -euo pipefail
if [ "${1-}" = --of ]; then
    packages=$2
    shift 2
    [[ " $packages " == *" $CARGO_PKG_NAME "* ]] || exit 0
    exec "$@"
fi
cd "$(dirname "$0")/.."
export SQLX_OFFLINE=true
lab=${CARGO_TARGET_DIR:-target}/debug/lab
# Number of busy end-to-end tests that run at once.
at_once=3
# Free memory, in KiB, that the tests require to keep their files in memory.
room_kb=$((4 << 20))

# --lane PACKAGES TARGETS ARGUMENTS... runs the tests of these packages in these targets, which are
# options of cargo. Every lane builds the whole workspace, because for a part of it, cargo would
# compile dependencies with other features. To leave out the other packages, cargo starts each
# executable through this script with --of PACKAGES, which runs the executable only if its package
# is one of PACKAGES.
if [ "${1-}" = --lane ]; then
    packages=$2
    read -ra targets <<<"$3"
    shift 3
    # Show the output of passing tests too, because it has the `skipped:` lines.
    exec cargo test --workspace "${targets[@]}" --no-fail-fast \
        --config "target.'cfg(unix)'.runner = ['$PWD/ops/test.sh', '--of', '$packages']" -- --show-output "$@"
fi

# Shortens the output of `cargo test`. For passing tests it prints only `skipped:` and `void:`
# lines. It omits executables that ran no test.
brief() {
    awk '
        / 0 passed; 0 failed; 0 ignored; / { hidden = 0; next }
        /^successes:$/ { hidden = 1; next }
        /^failures:$/ || /^test result: / { hidden = 0 }
        hidden && /^---- .* stdout ----$/ { test = $2 }
        hidden && /^(skipped|void): / { if (test != told) print $1, test ":", substr($0, index($0, " ") + 1); told = test }
        # If an executable was killed, its list of passed tests has no end, so the next executable
        # ends it.
        /^ +Running / { hidden = 0; running = $0 "\n"; next }
        /^$/ || /^running 0 tests$/ { if (!hidden) next }
        !hidden { printf "%s", running; running = ""; print; fflush() }
    '
}

sum() { # LOG
    echo
    echo "== the test runner's results"
    brief <"$1" | awk '
        /^(skipped|void): / { unshown++ }
        /^test result: / {
            print
            for (i = 2; i <= NF; i++) {
                if ($i == "passed;") passed += $(i - 1)
                if ($i == "failed;") failed += $(i - 1)
                if ($i == "ignored;") skipped += $(i - 1)
            }
        }
        END {
            printf "%d passed, %d failed, %d skipped\n", passed - unshown, failed, skipped + unshown
            exit (failed > 0 || passed == 0)
        }
    '
}

# Makes a folder in memory if there is room, because the tests create hundreds of databases and sync
# many small files. Some machines forbid starting programs from such a folder; then it is not used.
in_memory() {
    local free folder
    free=$({ df --output=avail -k /dev/shm | tail -1; awk '/^MemAvailable:/ { print $2 }' /proc/meminfo; } 2>/dev/null | sort -n | head -1)
    [ "${free:-0}" -ge "$room_kb" ] && folder=$(mktemp -d /dev/shm/landfall-XXXXXX) || return 1
    cp /bin/true "$folder/probe"
    if "$folder/probe" 2>/dev/null; then
        rm "$folder/probe"
        echo "$folder"
    else
        rm -rf "$folder"
        return 1
    fi
}

scratch=$(in_memory) || scratch=$(mktemp -d /tmp/landfall-XXXXXX)
# If root runs the tests, Postgres runs as another user, which must be able to enter the folder.
chmod 755 "$scratch"
export TMPDIR=$scratch
status=0
# If a test failed, keep the files of its cluster, and print where they are.
clean_up() {
    rm -f "$scratch"/{busy,others,lab,agent,all}
    if [ "$status" = 0 ]; then
        rm -rf "$scratch"
    else
        rmdir "$scratch" 2>/dev/null || echo "files of failed tests are in $scratch: remove it when they are read"
    fi
}
trap clean_up EXIT
# If Scrapy, from PyPI, or the browser's library, from npm, cannot be installed, its test is skipped.
ops/peers.sh --only scrapy &
ops/browser.sh &
# The scheduler's unit tests take longest to compile, so the first command compiles them. A single
# command would compile them last, and one processor would idle meanwhile. The first command also
# compiles the lab, which depends on all crates, so that dependencies get the same features as in
# the whole workspace.
cargo test -p landfall-lab -p landfall-scheduler --no-run --lib && cargo test --workspace --no-run --lib --test '*' || status=$?
wait
built=$SECONDS
if [ "$status" = 0 ]; then
    # If a time limit ends the tests, still add up the results up to that time.
    trap : TERM
    # shellcheck disable=SC2016 # expanded by the inner shell
    "$lab" with-postgres -- bash -euo pipefail -c '
        # Starts a lane in the background, and waits until its first executable runs. Until then,
        # cargo holds a lock that the other lanes need.
        start() { # LOG PACKAGES TARGETS ARGUMENTS...
            local log=$1
            shift
            # A background job ignores Ctrl-C by default, so reset the signals.
            (trap - INT QUIT; exec ops/test.sh --lane "$@") >"$log" 2>&1 &
            lanes[$!]=$log
            while kill -0 $! 2>/dev/null && ! grep -qs "^ *Running " "$log"; do sleep 0.1; done
        }
        declare -A lanes
        status=0
        start "$0/busy" landfall-lab "--test *" busy:: --test-threads="$1"
        start "$0/others" "landfall-lab landfall-scheduler landfall-agent landfall-proto" "--test *" \
            --skip busy:: --skip quiet::
        start "$0/lab" landfall-lab --lib
        start "$0/agent" "landfall-agent landfall-proto" --lib
        ops/test.sh --lane landfall-scheduler --lib 2>&1 || status=$?
        for lane in "${!lanes[@]}"; do
            wait "$lane" || status=$?
            cat "${lanes[$lane]}"
        done
        ops/test.sh --lane landfall-lab "--test *" quiet:: --test-threads=2 2>&1 || status=$?
        exit $status
    ' "$scratch" "$at_once" | tee "$scratch/all" | brief || status=$?
else
    : >"$scratch/all"
fi
sum "$scratch/all" || { [ "$status" != 0 ] || status=1; }
echo "built in $((built / 60)) min $((built % 60)) s, tested in $(((SECONDS - built) / 60)) min $(((SECONDS - built) % 60)) s"
exit "$status"
