# Finds source files that contain only tests. The lints source this script.

# Prints the files of modules that are declared below the DIRECTORIES as `#[cfg(test)] mod name;`,
# and all files in folders of the same name.
test_files() { # DIRECTORY...
    local declaring name folder
    find "$@" -name '*.rs' -type f | sort | while IFS= read -r declaring; do
        case "${declaring##*/}" in
        lib.rs | main.rs) folder=${declaring%/*} ;;
        *) folder=${declaring%.rs} ;;
        esac
        awk '
            /^[ \t]*#\[cfg\(test\)\]/ { tests = 1; next }
            tests && match($0, /mod [a-z0-9_]+;/) { print substr($0, RSTART + 4, RLENGTH - 5) }
            { tests = 0 }
        ' "$declaring" | while IFS= read -r name; do
            find "$folder/$name.rs" "$folder/$name" -name '*.rs' -type f 2>/dev/null || true
        done
    done
}
