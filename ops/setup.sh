#!/usr/bin/env bash
# Installs what is needed to build and test Landfall on a Debian machine with Rust: a C compiler,
# make, ip and the binaries of the Postgres server. For tests, also installs a browser, other
# crawlers, promtool and Python's gRPC. Before it installs packages, it prints which ones,
# and why each is needed. Does nothing if nothing is missing.
#
# Prevents Debian from creating and starting a system-wide Postgres cluster, because Landfall starts
# private ones. An existing cluster is not changed.
#
#   ops/setup.sh                      install what is missing, as root or with sudo
#   ops/setup.sh --for demo           install only what `make demo` needs
#   ops/setup.sh --for package        install what `make package` needs instead
#   ops/setup.sh --for check-package  install what `make check-package` needs instead
#   ops/setup.sh --dry-run            only print what is missing
set -euo pipefail

dry_run=no
purpose=tests
while [ $# -gt 0 ]; do
    case "$1" in
    --dry-run) dry_run=yes ;;
    --for)
        purpose=${2-}
        case "$purpose" in
        tests | demo | package | check-package) ;;
        *)
            echo "setup: --for is tests, demo, package or check-package, not '$purpose'" >&2
            exit 2
            ;;
        esac
        shift
        ;;
    *)
        echo "setup: unknown argument '$1': --dry-run and --for PURPOSE are known" >&2
        exit 2
        ;;
    esac
    shift
done

packages=()
reasons=()

need() { # PACKAGE REASON
    packages+=("$1")
    reasons+=("$2")
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# Debian installs the server's binaries outside PATH, in one directory per major version.
has_postgres_server() {
    local initdb
    for initdb in /usr/lib/postgresql/*/bin/initdb; do
        if [ -x "$initdb" ] && [ -x "${initdb%/*}/postgres" ]; then
            return 0
        fi
    done
    return 1
}

# A compiler also needs the C library's headers and start files, so this check links a program.
c_compiler_works() {
    has cc && echo '#include <stdio.h>
int main(void) { return 0; }' | cc -x c -o /dev/null - 2>/dev/null
}

find_missing() {
    if ! c_compiler_works; then
        need gcc "compiles and links the C parts of some crates"
        need libc6-dev "the C library's headers, for the same"
    fi
    has make || need make "runs the Makefile"
    [ -e /etc/ssl/certs/ca-certificates.crt ] || need ca-certificates "lets cargo and apt verify the servers from which they download"
    "find_missing_for_${purpose//-/_}"
}

find_missing_for_demo() {
    has setpriv || need util-linux "has setpriv, which stops a private Postgres when its parent dies"
    has ip || need iproute2 "has ip, which sets up the network namespaces of the lab's tun grade"
    has_postgres_server || need postgresql "the database server; Landfall starts private instances of it"
}

find_missing_for_tests() {
    find_missing_for_demo
    has patch || need patch "plants known bugs in a copy of the sources, to test the judge of faults"
    ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 ||
        need libfaketime "gives a process a wrong wall clock, for tests of faults"
    has wget2 || need wget2 "another crawler, to which the tests hand sites"
    ls /usr/lib/*/libnss_wrapper.so >/dev/null 2>&1 || need libnss-wrapper "lets wget2 find the emulated network's sites by name"
    python3 -c 'import ensurepip, venv' 2>/dev/null || need python3-venv "makes the environment of Scrapy, another crawler for the tests"
    /usr/bin/python3 -c 'import grpc' 2>/dev/null || need python3-grpcio "calls the scheduler from Python, for the test of the example"
    has protoc || need protobuf-compiler "generates code for that example"
    has grpc_python_plugin || need protobuf-compiler-grpc "does so for Python"
    [ -e /usr/include/google/protobuf/duration.proto ] || need libprotobuf-dev "has definitions that the protocol imports"
    [ -x /usr/sbin/haproxy ] || need haproxy "leads a scheduler to another database in a test"
    [ -x /usr/sbin/pgbouncer ] || need pgbouncer "stands between a scheduler and its database in a test"
    [ -x /usr/bin/chromium ] || need chromium "the browser in which the dashboard is tested"
    has node || need nodejs "drives that browser"
    has npm || need npm "downloads the browser's driver for tests"
    has prometheus && has promtool || need prometheus "the tests run it with the alerts, the panels and an example of its configuration"
}

# Building for the other architecture needs a cross compiler.
find_missing_for_package() {
    has git || need git "finds the commit for the version"
    has readelf || need binutils "checks that a binary is static"
    has musl-gcc || need musl-tools "compiles the C parts of some crates for static binaries"
    case "$(uname -m)" in
    aarch64)
        has x86_64-linux-gnu-gcc || need gcc-x86-64-linux-gnu "compiles and links for amd64"
        [ -e /usr/x86_64-linux-gnu/include/stdio.h ] || need libc6-dev-amd64-cross "C headers, for the same"
        ;;
    *)
        has aarch64-linux-gnu-gcc || need gcc-aarch64-linux-gnu "compiles and links for arm64"
        [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || need libc6-dev-arm64-cross "C headers, for the same"
        ;;
    esac
}

find_missing_for_check_package() {
    has debootstrap || need debootstrap "makes the Debian roots in which the packages are installed"
    has unshare || need util-linux "has unshare, which isolates the test from this machine"
    has ip || need iproute2 "has ip, which sets up loopback in a network namespace"
    has python3 || need python3 "serves the crawled sites"
}

check_cargo() {
    if ! has cargo && [ ! -x "${CARGO_HOME:-${HOME-}/.cargo}/bin/cargo" ]; then
        echo "setup: cargo is neither in PATH nor in ${CARGO_HOME:-${HOME-}/.cargo}/bin: install Rust from https://rustup.rs and run this again" >&2
        exit 1
    fi
}

# Sets `as_root` to the prefix with which a command runs as root.
become_root() {
    if [ "$(id -u)" = 0 ]; then
        as_root=(env)
    elif has sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        as_root=(sudo env)
    else
        echo "setup: ${packages[*]} must be installed: run this as root, or with sudo" >&2
        exit 1
    fi
}

apt() {
    "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"
}

# Reads all output before matching. If the reader stopped at the match, apt-cache could be killed by
# a signal, and with pipefail the package would count as missing.
has_candidate() {
    local policy
    policy=$(apt-cache policy "$1" 2>/dev/null)
    [[ $policy =~ Candidate:\ [^\(] ]]
}

# When Debian first configures a server, it creates and starts the cluster `main`, unless this
# setting forbids it. The setting is removed afterwards, so that later installations follow Debian's
# default.
note_dir=/etc/postgresql-common/createcluster.d
note=$note_dir/landfall-setup.conf

forbid_cluster() {
    trap allow_cluster EXIT
    "${as_root[@]}" mkdir -p "$note_dir"
    echo 'create_main_cluster = off' | "${as_root[@]}" tee "$note" >/dev/null
}

allow_cluster() {
    "${as_root[@]}" rm -f "$note"
    "${as_root[@]}" rmdir --ignore-fail-on-non-empty "$note_dir" 2>/dev/null || true
}

install_missing() {
    local package
    for package in "${packages[@]}"; do
        if ! has_candidate "$package"; then
            apt update
            break
        fi
    done
    if [[ " ${packages[*]} " = *" postgresql "* ]]; then
        forbid_cluster
    fi
    for package in "${packages[@]}"; do
        if ! has_candidate "$package"; then
            echo "setup: this system's package lists have no package $package: install its equivalent by hand" >&2
            exit 1
        fi
    done
    # Old package lists may name files that the mirror no longer has. Update the lists, and try
    # again.
    if ! apt install --no-install-recommends "${packages[@]}"; then
        apt update
        apt install --no-install-recommends "${packages[@]}"
    fi
}

check_cargo
find_missing
if [ "${#packages[@]}" = 0 ]; then
    echo "setup: nothing to install"
    exit 0
fi
if ! has apt-get; then
    echo "setup: ${packages[*]} must be installed, but there is no apt-get: install the equivalents of these Debian packages by hand" >&2
    exit 1
fi
echo "setup: these Debian packages are missing:"
for i in "${!packages[@]}"; do
    printf '  %-16s %s\n' "${packages[$i]}" "${reasons[$i]}"
done
if [ "$dry_run" = yes ]; then
    exit 0
fi
become_root
install_missing
packages=()
reasons=()
find_missing
if [ "${#packages[@]}" != 0 ]; then
    echo "setup: ${packages[*]} still missing after the installation" >&2
    exit 1
fi
echo "setup: done"
