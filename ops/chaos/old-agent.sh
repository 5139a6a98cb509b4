#!/usr/bin/env bash
# Builds the agent of an older commit, in which leases did not yet survive all faults, and prints
# the binary's path. Fault tests restart agents with this binary, to simulate an upgrade that is
# rolled back.
#
#   ops/chaos/old-agent.sh     exit code 3 if the repository lacks that commit, as in a shallow clone
set -euo pipefail
cd "$(dirname "$0")/../.."

commit=e7712515
target=${CARGO_TARGET_DIR:-target}
place=$target/old-agent
binary=$place/landfall-agent-$commit

if [ ! -x "$binary" ]; then
    if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
        echo "old-agent: this clone lacks commit $commit: fetch the whole history" >&2
        exit 3
    fi
    rm -rf "$place/source"
    mkdir -p "$place/source"
    git archive "$commit" | tar -x -C "$place/source"
    # Use a separate target folder, because the builds would overwrite each other's binaries.
    (cd "$place/source" && SQLX_OFFLINE=true CARGO_TARGET_DIR="$PWD/../build" cargo build --release --bin landfall-agent >&2)
    cp "$place/build/release/landfall-agent" "$binary"
    rm -rf "$place/source" "$place/build"
fi
echo "$binary"
