#!/usr/bin/env bash
# Builds the agent of an older commit, the one that closed the issue before leases were made to survive anything, and prints
# where it lies: faults restart agents with it, as an upgrade that is rolled back would.
#
#   ops/old-agent.sh     exit 3 where the repository does not hold that commit, as in a shallow clone
set -euo pipefail
cd "$(dirname "$0")/.."

commit=e7712515
target=${CARGO_TARGET_DIR:-target}
place=$target/old-agent
binary=$place/landfall-agent-$commit

if [ ! -x "$binary" ]; then
    if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
        echo "old-agent: this clone does not hold commit $commit: fetch the whole history to have it" >&2
        exit 3
    fi
    rm -rf "$place/source"
    mkdir -p "$place/source"
    git archive "$commit" | tar -x -C "$place/source"
    # Its own target: the two builds must not overwrite each other's binaries.
    (cd "$place/source" && SQLX_OFFLINE=true CARGO_TARGET_DIR="$PWD/../build" cargo build --release --bin landfall-agent >&2)
    cp "$place/build/release/landfall-agent" "$binary"
    rm -rf "$place/source" "$place/build"
fi
echo "$binary"
