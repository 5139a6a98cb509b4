#!/usr/bin/env bash
# Writes .sqlx: Postgres' description of every query in the sources, so that a build needs no
# database. The descriptions come from a temporary Postgres to which the migrations were applied.
# This is a shell script, because Landfall's own binaries cannot be built while .sqlx is wrong.
#
#   ops/sqlx-prepare.sh          write .sqlx
#   ops/sqlx-prepare.sh --check  change nothing; fail if .sqlx differs, and name the differences
set -euo pipefail
cd "$(dirname "$0")/.."

check=no
case "${1-}" in
'') ;;
--check) check=yes ;;
*)
    echo "sqlx-prepare: unknown argument '$1': only --check is known" >&2
    exit 2
    ;;
esac

# Use the newest installed server. Debian installs its binaries outside PATH.
bin=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
if [ -z "$bin" ] || [ ! -x "$bin/initdb" ]; then
    echo "sqlx-prepare: no Postgres server below /usr/lib/postgresql: run ops/setup.sh first" >&2
    exit 1
fi

# Postgres refuses to run as root, so root starts it as the user of Debian's package.
as_server=()
if [ "$(id -u)" = 0 ]; then
    as_server=(setpriv --reuid=postgres --regid=postgres --init-groups --)
fi

work=$(mktemp -d /tmp/landfall-sqlx.XXXXXX)
clean_up() {
    if [ -f "$work/data/postmaster.pid" ]; then
        server pg_ctl -D "$work/data" -m immediate -w stop >/dev/null 2>&1 || true
    fi
    rm -rf "$work"
}
trap clean_up EXIT

server() { # PROGRAM ARGUMENTS
    local program=$1
    shift
    (cd "$work" && "${as_server[@]}" "$bin/$program" "$@")
}

start_postgres() {
    if [ "$(id -u)" = 0 ]; then
        chown postgres: "$work"
    fi
    # The data is temporary, so it need not be synced to disk. The server listens only on a socket
    # in its folder.
    server initdb -D "$work/data" -U postgres -A trust -E UTF8 --locale=C --no-sync >"$work/initdb.log" 2>&1 || {
        cat "$work/initdb.log" >&2
        exit 1
    }
    server pg_ctl -D "$work/data" -l "$work/data/log" -w start \
        -o "-c listen_addresses='' -c unix_socket_directories='$work' -c fsync=off" >/dev/null || {
        cat "$work/data/log" >&2
        exit 1
    }
}

migrate() {
    local migration
    for migration in migrations/*.sql; do
        server psql -h "$work" -U postgres -q -X -v ON_ERROR_STOP=1 --single-transaction postgres <"$migration" || {
            echo "sqlx-prepare: $migration failed" >&2
            exit 1
        }
    done
}

# The query macros write their data while they are compiled, so all files that use them must be
# compiled again.
describe_queries() { # INTO
    local sources
    sources=$(grep -rlE 'query(_as|_scalar|_file)?(_unchecked)?!' --include='*.rs' scheduler agent tests || true)
    if [ -z "$sources" ]; then
        return
    fi
    # shellcheck disable=SC2086  # one word per file: the paths have no spaces
    touch $sources
    SQLX_OFFLINE=false SQLX_OFFLINE_DIR="$1" DATABASE_URL="postgres://postgres@localhost/postgres?host=$work" \
        "${CARGO:-cargo}" check --quiet --workspace --all-targets
}

start_postgres
migrate
mkdir "$work/sqlx"
describe_queries "$work/sqlx"
count=$(find "$work/sqlx" -name 'query-*.json' | wc -l)

if [ "$check" = yes ]; then
    mkdir -p "$work/none"
    committed=.sqlx
    [ -d .sqlx ] || committed=$work/none
    if ! difference=$(diff -rq "$committed" "$work/sqlx"); then
        sed -E "s#Only in $work/sqlx: (.*)#missing: .sqlx/\1#; s#Only in $committed: (.*)#no longer used: .sqlx/\1#; s#Files (\S+) and .* differ#out of date: \1#" \
            <<<"$difference" >&2
        echo "sqlx-prepare: .sqlx does not match the queries and migrations: run \`make sqlx-prepare\` and commit it" >&2
        exit 1
    fi
    echo "sqlx-prepare: .sqlx is up to date ($count queries)"
else
    rm -rf .sqlx
    cp -r "$work/sqlx" .sqlx
    echo "sqlx-prepare: wrote .sqlx ($count queries)"
fi
