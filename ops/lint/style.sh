#!/usr/bin/env bash
# Checks rules that clippy does not check: maximum file length, no `unwrap()` and `#[allow]` outside
# tests, no TODO without an issue, and no comparison of sentences meant for people. clippy checks
# the length of functions (clippy.toml).
#
#   ops/lint/style.sh              check this repository
#   ops/lint/style.sh --self-test  show that every rule can fail
set -euo pipefail
# shellcheck source=ops/lint/test-files.sh
. "$(dirname "$0")/test-files.sh"

# Maximum lines of a source file before its tests.
max_lines=400
sources=(proto/src scheduler/src agent/src tests/src)

# Names of variables that contain sentences written for people, and the ways to compare them in SQL
# or Rust.
said='(reason|note|said|message|unmeasured_detail)'
wording="(where|and|or|when|on|not|[(]) *([a-z_]+[.])?$said *(=|<>|!=) *'|$said( not)? i?like |$said([.]as_deref[(][)])? *[=!]= *[\"S]|$said([.]as_str[(][)])?[.](starts_with|ends_with|contains)[(]"

# Prints one line per violation in FILE; IS_TEST is 1 if the file contains only tests.
offences_of() { # FILE IS_TEST
    awk -v file="$1" -v tests="$2" -v max="$max_lines" -v wording="$wording" '
        function offend(what) { print file ":" FNR ": " what }
        # The test module comes last in a file.
        after_cfg && /mod [a-z0-9_]+ \{/ { tests = 1 }
        { after_cfg = /^#\[cfg\(test\)\]/ }
        { code = $0; sub(/^[ \t]*\/\/.*/, "", code) }
        !tests && !after_cfg { lines = FNR }
        !tests && code ~ /\.unwrap\(\)/ { offend("unwrap() outside tests: return an error, or expect(\"the invariant\")") }
        !tests && file ~ /scheduler\/src/ && code ~ wording { offend("a sentence for people is compared: store a cause and compare that") }
        code ~ /#!?\[allow\(/ { offend("#[allow]: use #[expect(.., reason = \"..\")]") }
        /(^|[^A-Za-z])(TODO|FIXME|XXX)([^A-Za-z]|$)/ && !/(TODO|FIXME|XXX)\(issue [0-9]+\)/ { offend("a note without an issue: write TODO(issue N)") }
        END { if (lines > max) print file ": " lines " lines before its tests; at most " max }
    ' "$1"
}

offences() { # DIRECTORY
    local source file found=1 lines tests is_test
    for source in "${sources[@]}"; do
        [ -d "$1/$source" ] || continue
        tests=$(test_files "$1/$source")
        while IFS= read -r file; do
            is_test=0
            if grep -qxF "$file" <<<"$tests"; then
                is_test=1
            fi
            lines=$(offences_of "$file" "$is_test")
            if [ -n "$lines" ]; then
                echo "$lines"
                found=0
            fi
        done < <(find "$1/$source" -name '*.rs' -type f | sort)
    done
    return "$found"
}

self_test() {
    local dir file
    dir=$(mktemp -d)
    # The variable is expanded now, because it no longer exists when the trap runs.
    trap "rm -rf '$dir'" EXIT
    mkdir -p "$dir/agent/src"
    file="$dir/agent/src/lib.rs"
    printf '#[cfg(test)]\nmod checks;\nlet x = y.unwrap();\n' >"$file"
    if ! offences "$dir" >/dev/null; then
        echo "lint-style: self-test: an unwrap below a declared test module was not caught" >&2
        exit 1
    fi
    local bad=('let x = y.unwrap();' '#[allow(dead_code)]' '#![allow(dead_code)]' '// TODO: later' '// FIXME' '/* XXX */')
    for line in "${bad[@]}"; do
        printf '%s\n' "$line" >"$file"
        if ! offences "$dir" >/dev/null; then
            echo "lint-style: self-test: not caught: $line" >&2
            exit 1
        fi
    done
    mkdir -p "$dir/scheduler/src/store"
    bad+=("where tasks.reason = 'no agent'" "and note like 'waited%'" 'if task.reason.starts_with("no") {' 'if said == "lost" {')
    for line in "${bad[@]: -4}"; do
        printf '%s\n' "$line" >"$dir/scheduler/src/store/tasks.rs"
        if ! offences "$dir" >/dev/null; then
            echo "lint-style: self-test: not caught: $line" >&2
            exit 1
        fi
    done
    printf "update tasks set state = 'failed', reason = 'cancelled by the operator'\n" >"$dir/scheduler/src/store/tasks.rs"
    seq "$((max_lines + 1))" | sed 's/^/\/\/ line /' >"$file"
    if ! offences "$dir" >/dev/null; then
        echo "lint-style: self-test: a file of $((max_lines + 1)) lines was not caught" >&2
        exit 1
    fi
    { seq "$max_lines" | sed 's/^/\/\/ line /'; printf '#[cfg(test)]\nmod tests {\n    x.unwrap();\n}\n// TODO(issue 7): y\n'; } >"$file"
    printf '#[cfg(test)]\nmod checks;\n' >"$dir/agent/src/main.rs"
    printf 'x.unwrap();\n' >"$dir/agent/src/checks.rs"
    if offences "$dir"; then
        echo "lint-style: self-test: something allowed was reported" >&2
        exit 1
    fi
    echo "lint-style: self-test passed: $((${#bad[@]} + 2)) offences are caught"
}

case "${1-}" in
'')
    cd "$(dirname "$0")/../.."
    if offences .; then
        echo "lint-style: the lines above break the rules of style" >&2
        exit 1
    fi
    echo "lint-style: clean"
    ;;
--self-test) self_test ;;
*)
    echo "lint-style: unknown argument '$1': only --self-test is known" >&2
    exit 2
    ;;
esac
