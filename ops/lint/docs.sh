#!/usr/bin/env bash
# Fails if the pages do not match the tree, or are too long: ARCHITECTURE.md must list exactly the
# folders of sources, the target of every relative link must exist, and each page has a word limit.
#
#   ops/lint/docs.sh              check this repository
#   ops/lint/docs.sh --self-test  show that every rule can fail
set -euo pipefail

# Maximum number of words of a page. The pages that are generated from the programs, and the
# changelog, have no limit.
max_words() { # PAGE
    case "$1" in
    README.md) echo 1200 ;;
    ARCHITECTURE.md) echo 1500 ;;
    CHANGELOG.md | docs/reference/*) echo 1000000 ;;
    *) echo 2000 ;;
    esac
}

# Prints the folders that ARCHITECTURE.md lists, which are the rows of the table below `### `DIR``.
listed() { # PAGE
    awk -F'`' '
        /^##/ { dir = /^### / ? $2 : "" }
        dir ~ /\/src$/ && /^\| `/ { print dir "/" $2 }
    ' "$1" | sort
}

offences() { # DIRECTORY
    local root=$1 found=1 page link target differs words max
    differs=$(diff <(listed "$root/ARCHITECTURE.md") \
        <(cd "$root" && find ./*/src -mindepth 1 -type d -not -path '*/tests' -not -path './target/*' | sed 's#^\./##' | sort) || true)
    if [ -n "$differs" ]; then
        sed -nE 's#^< (.*)#ARCHITECTURE.md: lists \1, which does not exist#p; s#^> (.*)#ARCHITECTURE.md: does not list \1#p' <<<"$differs"
        found=0
    fi
    while IFS= read -r page; do
        # The bars between the cells of a table are no words.
        words=$(awk '{ for (i = 1; i <= NF; i++) words += $i != "|" } END { print words + 0 }' "$page")
        max=$(max_words "${page#"$root"/}")
        if [ "$words" -gt "$max" ]; then
            echo "${page#"$root"/}: has $words words, more than $max"
            found=0
        fi
        while IFS= read -r link; do
            target=${link%%#*}
            if [ -n "$target" ] && [ ! -e "$(dirname "$page")/$target" ]; then
                echo "${page#"$root"/}: links to $target, which does not exist"
                found=0
            fi
        done < <(grep -oE '\]\([^) ]+\)' "$page" | sed -E 's/^\]\((.*)\)$/\1/' | grep -vE '^[a-z]+:' || true)
    done < <(find "$root" -name '*.md' -not -path '*/target/*' -not -path '*/.git/*')
    return "$found"
}

self_test() {
    local dir
    dir=$(mktemp -d)
    # The variable is expanded now, because it no longer exists when the trap runs.
    trap "rm -rf '$dir'" EXIT
    mkdir -p "$dir/agent/src/crawl/fetch" "$dir/agent/src/crawl/tests"
    touch "$dir/agent/src/lib.rs"
    local tree='### `agent/src`\n| `crawl` | x |\n| `crawl/fetch` | y |\n## Other\n| `z` | |\n[lib](agent/src/lib.rs#x) [web](https://example.org)\n'
    # shellcheck disable=SC2059  # the tree is a format on purpose
    printf "$tree" >"$dir/ARCHITECTURE.md"
    if offences "$dir"; then
        echo "lint-docs: self-test: a correct page was reported" >&2
        exit 1
    fi
    local case
    for case in 'mkdir agent/src/new' 'rm -r agent/src/crawl' 'echo "[x](gone.md)" >> ARCHITECTURE.md' \
        'seq 2001 > page.md'; do
        cp -r "$dir" "$dir.case"
        (cd "$dir.case" && eval "$case")
        if ! offences "$dir.case" >/dev/null; then
            rm -rf "$dir.case"
            echo "lint-docs: self-test: not caught: $case" >&2
            exit 1
        fi
        rm -rf "$dir.case"
    done
    echo "lint-docs: self-test passed: 4 offences are caught"
}

case "${1-}" in
'')
    cd "$(dirname "$0")/../.."
    if offences .; then
        echo "lint-docs: the lines above say what to correct" >&2
        exit 1
    fi
    echo "lint-docs: the pages match the tree"
    ;;
--self-test) self_test ;;
*)
    echo "lint-docs: unknown argument '$1': only --self-test is known" >&2
    exit 2
    ;;
esac
