#!/usr/bin/env bash
# Plants the bugs of tests/mutants, one at a time, in a copy of the sources, and runs a fault test
# with each. The judge must find the bug by a rule that the patch names. The exit code is 1 if the
# judge misses a bug.
#
#   ops/chaos/mutants.sh [--record DIR] [NAME...]    all bugs, or these; --record keeps the judge's input
#
# The head of a patch lists the expected rules after `rule:`, and the arguments of `lab chaos` after
# `chaos:`.
set -euo pipefail
cd "$(dirname "$0")/../.."

record=
if [ "${1-}" = --record ]; then
    record=$(realpath "$2")
    mkdir -p "$record"
    shift 2
fi
names=("$@")
if [ "${#names[@]}" = 0 ]; then
    for patch in tests/mutants/*.patch; do
        names+=("$(basename "$patch" .patch)")
    done
fi

place=${CARGO_TARGET_DIR:-$PWD/target}/mutants
mkdir -p "$place"
source=$place/source
export CARGO_TARGET_DIR=$place/build SQLX_OFFLINE=true

# Unchanged files keep their modification times, so that only the patched crates are built again.
copy_sources() {
    mkdir -p "$source"
    git ls-files -z --cached --others --exclude-standard | tar --null -T - -c | tar -x --keep-newer-files -C "$source" 2>/dev/null
    git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
        cmp -s "$file" "$source/$file" || cp "$file" "$source/$file"
    done
}

said() { # KEY PATCH
    sed -n "s/^$1: //p" "$2" | head -1
}

unnoticed=0
for name in "${names[@]}"; do
    patch=$PWD/tests/mutants/$name.patch
    copy_sources
    (cd "$source" && patch -p1 --forward --silent <"$patch")
    (cd "$source" && cargo build --quiet --workspace --bins)
    found=
    for seed in 1 2 3; do
        out=$place/$name-$seed.json
        # shellcheck disable=SC2046 # The arguments are separate words.
        "$CARGO_TARGET_DIR/debug/lab" chaos --format json --seed "$seed" --record "$place/$name.history.json" \
            $(said chaos "$patch") >"$out" 2>"$place/$name-$seed.log" || true
        for rule in $(said rule "$patch"); do
            count=$(sed -n "s/.*\"$rule\":\([0-9]*\).*/\1/p" "$out")
            if [ "${count:-0}" -gt 0 ]; then
                found="$found $rule ($count)"
            fi
        done
        [ -z "$found" ] || break
    done
    if [ -n "$found" ]; then
        echo "caught     $name:$found, seed $seed"
        [ -z "$record" ] || "$CARGO_TARGET_DIR/debug/lab" judge "$place/$name.history.json" --shrink "$record/$name.json" >/dev/null || true
    else
        echo "UNNOTICED  $name: $(tail -1 "$place/$name-3.log")"
        unnoticed=1
    fi
done
exit "$unnoticed"
