#!/usr/bin/env bash
# Fails if a file of the pure core uses a runtime, the database, gRPC, a clock, the environment,
# files, or a module outside the core, or if a file of the scheduler reaches the database past
# store/db.rs. Comments and tests are not checked.
#
#   ops/lint/core.sh              check this repository
#   ops/lint/core.sh --self-test  show that every rule can fail
set -euo pipefail
# shellcheck source=ops/lint/test-files.sh
. "$(dirname "$0")/test-files.sh"

# The core, relative to the repository. A folder means all files in it.
core=(
    scheduler/src/model.rs
    scheduler/src/model
    scheduler/src/gnp.rs
    scheduler/src/gnp
    scheduler/src/strategy.rs
    scheduler/src/strategy
    scheduler/src/plot.rs
    scheduler/src/plot
    scheduler/src/simulate/choices.rs
    scheduler/src/simulate/map_and_landmarks.rs
    scheduler/src/simulate/page.rs
    scheduler/src/simulate/run.rs
    scheduler/src/simulate/score.rs
    scheduler/src/simulate/settings_and_draw.rs
    scheduler/src/status.rs
    scheduler/src/status
    scheduler/src/throughput.rs
    scheduler/src/throughput
    scheduler/src/capacity.rs
    scheduler/src/capacity
    agent/src/probe/weighted_mean.rs
    agent/src/probe/sample_schedule.rs
    agent/src/probe/sharing.rs
)

# Each rule is an extended regular expression, followed by an example that breaks the rule.
rules=(
    '(^|[^A-Za-z0-9_])(tokio|sqlx|tonic|hyper|reqwest)(_[a-z_]+)?::|use tokio::sync::Notify;'
    '(^|[^A-Za-z0-9_])SystemTime([^A-Za-z0-9_]|$)|let now = SystemTime::now();'
    '(Instant|Utc|Local)::now|let now = Instant::now();'
    'std::env([^A-Za-z0-9_]|$)|std::env::var("HOME")'
    'std::(fs|process)([^A-Za-z0-9_]|$)|std::fs::read("x")'
    'rand::rng\(|let mut rng = rand::rng();'
    'crate::(app|cli|config|grpc|store|jobs|machine|telemetry|wake|web)([^A-Za-z0-9_]|$)|use crate::store::Error;'
)
# A transaction that is begun elsewhere stays open if its caller is dropped during `BEGIN`.
door=scheduler/src/store/db.rs
# The type of an open transaction, which `Db` returns.
opened=scheduler/src/store/tx.rs
door_rules=(
    'PgPool|pool: &PgPool'
    'PoolConnection|conn: PoolConnection<Postgres>'
    'tx = [a-z_.]+\.(begin|begin_with)\(|let mut tx = conn.begin().await?;'
    'Tx::on\(|let mut tx = Tx::on(conn).await?;'
)
# These files have connections that no other caller gets.
own_connections=(
    scheduler/src/app/backup/restore.rs
    scheduler/src/jobs/leadership.rs
    scheduler/src/store/schedulers.rs
    scheduler/src/store/schema/histories.rs
)
# The last `|` separates a rule from its example.
pattern_of() { echo "${1%|*}"; }
example_of() { echo "${1##*|}"; }

# Prints FILE:LINE:TEXT for each line of code. Omits tests and line comments.
code_of() { # FILE
    awk -v file="$1" '
        after_cfg && /mod [a-z0-9_]+ \{/ { exit }
        { after_cfg = /^#\[cfg\(test\)\]/ }
        /^[ \t]*\/\// { next }
        { print file ":" FNR ":" $0 }
    ' "$1"
}

# Prints the lines of the files named on standard input that break a rule. Succeeds if there are any.
lines_against() { # TESTS RULE...
    local file rule code tests=$1 found=1
    shift
    while IFS= read -r file; do
        if grep -qxF "$file" <<<"$tests"; then
            continue
        fi
        code=$(code_of "$file")
        for rule in "$@"; do
            if grep -E "^[^:]+:[0-9]+:.*($(pattern_of "$rule"))" <<<"$code"; then
                found=0
            fi
        done
    done
    return "$found"
}

# Prints the lines below DIRECTORY that break a rule. Succeeds if there are any.
offences() { # DIRECTORY
    local entry tests found=1
    tests=$(test_files "$1"/*/src)
    for entry in "${core[@]}"; do
        [ -e "$1/$entry" ] || continue
        find "$1/$entry" -name '*.rs' -type f | sort | lines_against "$tests" "${rules[@]}" && found=0
    done
    find "$1/scheduler/src" -name '*.rs' -type f | sort |
        grep -vxF "$(printf "$1/%s\n" "$door" "$opened" "${own_connections[@]}")" |
        lines_against "$tests" "${door_rules[@]}" && found=0
    return "$found"
}

self_test() {
    local dir rule
    dir=$(mktemp -d)
    # The variable is expanded now, because it no longer exists when the trap runs.
    trap "rm -rf '$dir'" EXIT
    mkdir -p "$dir/scheduler/src/gnp"
    local file="$dir/scheduler/src/gnp/fit.rs"
    for rule in "${rules[@]}" "${door_rules[@]}"; do
        printf 'pub fn f() {\n    %s\n}\n' "$(example_of "$rule")" >"$file"
        if ! offences "$dir" >/dev/null; then
            echo "lint-core: self-test: not caught: $(example_of "$rule")" >&2
            exit 1
        fi
    done
    printf '//! Knows no tokio::sync, no std::env.\npub fn f() {}\n#[cfg(test)]\nmod tests { use tokio::test; }\n' >"$file"
    if offences "$dir"; then
        echo "lint-core: self-test: a comment or a test was treated as code" >&2
        exit 1
    fi
    echo "lint-core: self-test passed: $((${#rules[@]} + ${#door_rules[@]})) rules can fail"
}

case "${1-}" in
'')
    cd "$(dirname "$0")/../.."
    if offences .; then
        echo "lint-core: the lines above make the core impure (pass these values as arguments), or reach the database" \
            "past $door (use Db)" >&2
        exit 1
    fi
    echo "lint-core: the core is pure"
    ;;
--self-test) self_test ;;
*)
    echo "lint-core: unknown argument '$1': only --self-test is known" >&2
    exit 2
    ;;
esac
