#!/usr/bin/env bash
# Builds packages for machines without Rust: static binaries of the scheduler and the agent, built
# with musl so that they run on any Linux. The packages are .tar.gz and .deb files; the .deb files
# have units, users, folders and example configurations. Needs a Debian machine with rustup;
# announces and installs other missing tools. Builds of the same commit with the same toolchain are
# identical.
#
#   ops/package.sh                    for amd64 and arm64, into target/package
#   ops/package.sh --arch amd64       for amd64 only
#   ops/package.sh --version          only print the binaries' and the packages' versions
set -euo pipefail
cd "$(dirname "$0")/.."

archs=(amd64 arm64)
only_version=no
while [ $# -gt 0 ]; do
    case "$1" in
    --version) only_version=yes ;;
    --arch)
        case "${2-}" in
        amd64 | arm64) archs=("$2") ;;
        *)
            echo "package: --arch is amd64 or arm64, not '${2-}'" >&2
            exit 2
            ;;
        esac
        shift
        ;;
    *)
        echo "package: unknown argument '$1': --arch ARCH and --version are known" >&2
        exit 2
        ;;
    esac
    shift
done

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$target/package
cargo_home=$(realpath -m "${CARGO_HOME:-$HOME/.cargo}")
export PATH=$PATH:$cargo_home/bin
# Maximum size of the agent's binary, which every machine of a fleet downloads.
most_agent_bytes=$((20 << 20))

# Sets `epoch`, and the versions that are compiled into the binaries. The date is that of the
# commit, or SOURCE_DATE_EPOCH, but never today's.
find_version() {
    local number commit='' changed
    number=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
    # Compare the folders, because an unpacked archive may be inside another repository.
    if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$PWD" ]; then
        commit=$(git rev-parse --short=8 HEAD)
        epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
        changed=$(git status --porcelain --untracked-files=no)
        if [ -n "$changed" ]; then
            echo "package: there are uncommitted changes; the version is marked as changed" >&2
            commit=$commit.changed
        fi
    else
        echo "package: this is not a git checkout; the version contains no commit" >&2
        # The files of an archive have the date on which it was packed.
        epoch=${SOURCE_DATE_EPOCH:-$(stat -c %Y Cargo.lock)}
    fi
    export SOURCE_DATE_EPOCH=$epoch
    local day second
    day=$(date -u -d "@$epoch" +%F)
    second=$(date -u -d "@$epoch" +%Y%m%d.%H%M%S)
    if [ -n "$commit" ]; then
        export LANDFALL_VERSION=$number+$commit
        export LANDFALL_LONG_VERSION="$number+$commit ($day)"
    else
        export LANDFALL_VERSION=$number
        export LANDFALL_LONG_VERSION="$number ($day, built outside of git)"
    fi
    # The commit's time makes the versions of later commits sort later.
    package_version=$number+$second${commit:+.$commit}
}

rust_target() { # ARCH
    case "$1" in
    amd64) echo x86_64-unknown-linux-musl ;;
    arm64) echo aarch64-unknown-linux-musl ;;
    esac
}

add_std() { # TARGET
    if [ -d "$(rustc --print target-libdir --target "$1")" ]; then
        return
    fi
    echo "package: installing Rust's standard library for $1 (rustup target add)"
    if ! command -v rustup >/dev/null || ! rustup target add "$1"; then
        echo "package: Rust's standard library for $1 is missing: install Rust from https://rustup.rs, and permit access to static.rust-lang.org" >&2
        exit 1
    fi
}

build() { # ARCH
    local rust variable compiler cflags strip=strip binary
    rust=$(rust_target "$1")
    add_std "$rust"
    variable=${rust//-/_}
    if [ "$1" = "$(dpkg --print-architecture)" ]; then
        compiler=musl-gcc
    else
        compiler=${rust%%-*}-linux-gnu-gcc
        strip=${rust%%-*}-linux-gnu-strip
        export "CARGO_TARGET_${variable^^}_LINKER=$compiler"
    fi
    # Replace the source paths of the build machine, which would be published, and would make builds
    # on other machines differ.
    cflags="-ffile-prefix-map=$PWD=/landfall -ffile-prefix-map=$cargo_home=/cargo"
    export "CC_$variable=$compiler" "CFLAGS_$variable=$cflags"
    RUSTFLAGS="--remap-path-prefix=$PWD=/landfall --remap-path-prefix=$cargo_home=/cargo" SQLX_OFFLINE=true \
        cargo build --profile dist --target "$rust" --workspace --bin landfall --bin landfall-agent
    # Strip function names, which only `make bench` needs. They are a fifth of a binary.
    mkdir -p "$stage/$1"
    for binary in landfall landfall-agent; do
        "$strip" -o "$stage/$1/$binary" "$target/$rust/dist/$binary"
    done
}

# Writes the manual and the shell completions with the binaries for this machine. These pages are
# the same for every architecture.
write_pages() {
    local host package share
    host=$(dpkg --print-architecture)
    if [ ! -d "$stage/$host" ]; then
        build "$host"
    fi
    for package in landfall landfall-agent; do
        share=$stage/pages/$package/share
        install -d "$share"/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
        "$stage/$host/$package" man "$share/man/man1"
        gzip -9n "$share"/man/man1/*.1
        "$stage/$host/$package" completions bash >"$share/bash-completion/completions/$package"
        "$stage/$host/$package" completions zsh >"$share/zsh/vendor-completions/_$package"
        "$stage/$host/$package" completions fish >"$share/fish/vendor_completions.d/$package.fish"
    done
}

# Packs a folder into an archive whose bytes depend only on the folder's content.
pack_tar() { # PARENT FOLDER
    tar --directory "$1" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=gnu --create "$2" |
        gzip -9n >"$out/$2.tar.gz"
}

archive() { # BINARY UNIT EXAMPLE ARCH BINARIES
    local name=$1-$LANDFALL_VERSION-linux-$4
    install -D -m 755 "$5/$1" "$stage/tar/$name/$1"
    install -m 644 "ops/systemd/$2" "ops/$3" LICENSE "$stage/tar/$name/"
    pack_tar "$stage/tar" "$name"
}

debian_package() { # PACKAGE ARCH BINARIES DEPENDS STATE
    local package=$1 root=$stage/deb/$1-$2 script
    install -d "$root"/{DEBIAN,usr/bin,lib/systemd/system,usr/share/doc/"$package"}
    install -m 755 "$3/$package" "$root/usr/bin/"
    # The unit's first comment explains how to install it by hand, so the package's unit omits it.
    sed -e '1,/^\[Unit\]$/{/^#/d}' -e 's#/usr/local/bin/#/usr/bin/#' "ops/systemd/$package.service" >"$root/lib/systemd/system/$package.service"
    cp -r "$stage/pages/$package/share" "$root/usr/"
    install -m 644 LICENSE "$root/usr/share/doc/$package/copyright"
    gzip -9n <CHANGELOG.md >"$root/usr/share/doc/$package/changelog.gz"
    for script in postinst prerm postrm; do
        sed -e "s/@PACKAGE@/$package/" -e "s/@STATE@/$5/" "ops/package/$script" >"$root/DEBIAN/$script"
        chmod 755 "$root/DEBIAN/$script"
    done
    case "$package" in
    landfall)
        install -D -m 644 ops/landfall.example.toml "$root/etc/landfall/landfall.toml"
        echo /etc/landfall/landfall.toml >"$root/DEBIAN/conffiles"
        ;;
    landfall-agent)
        install -D -m 644 ops/agent.example.toml "$root/usr/share/doc/$package/examples/agent.toml"
        install -m 755 ops/crawlers/wget2.sh "$root/usr/share/doc/$package/examples/"
        install -m 644 ops/crawlers/scrapy_site.py "$root/usr/share/doc/$package/examples/"
        ;;
    esac
    cat >"$root/DEBIAN/control" <<END
Package: $package
Version: $package_version
Architecture: $2
Maintainer: The Landfall developers <landfall@localhost>
Installed-Size: $(du -k --apparent-size -s "$root" | cut -f1)
Depends: $4
Section: net
Priority: optional
Description: $(description "$package")
END
    # dpkg-deb clamps dates to SOURCE_DATE_EPOCH. The compression is xz, because bullseye's dpkg
    # cannot read zstd.
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/${package}_${package_version}_$2.deb" >/dev/null
}

description() { # PACKAGE
    case "$1" in
    landfall)
        echo "scheduler of web crawls by agents in a wide-area network"
        echo " Sends every web site to an agent that is near it on the network, and explains the choice."
        echo " Contains the operator's commands, and runs a private Postgres."
        ;;
    landfall-agent)
        echo "prober and crawler for a Landfall scheduler"
        echo " Measures and crawls web sites politely, as its scheduler orders."
        ;;
    esac
}

# The binary must be static: a dynamic one would depend on libraries of the machine to which it is
# copied.
check_binary() { # FILE
    if [[ $(readelf --program-headers "$1") = *INTERP* ]]; then
        echo "package: $1 is not static" >&2
        exit 1
    fi
}

find_version
if [ "$only_version" = yes ]; then
    printf '%s\n' "$LANDFALL_LONG_VERSION" "$LANDFALL_VERSION" "$package_version"
    exit
fi
ops/setup.sh --for package
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
# File modes must not depend on the user's umask.
umask 022
rm -rf "$out"
mkdir -p "$out"
for arch in "${archs[@]}"; do
    build "$arch"
done
write_pages
for arch in "${archs[@]}"; do
    binaries=$stage/$arch
    for binary in landfall landfall-agent; do
        check_binary "$binaries/$binary"
    done
    bytes=$(stat -c %s "$binaries/landfall-agent")
    if [ "$bytes" -gt "$most_agent_bytes" ]; then
        echo "package: the agent for $arch has $bytes bytes; at most $most_agent_bytes" >&2
        exit 1
    fi
    archive landfall landfall.service landfall.example.toml "$arch" "$binaries"
    archive landfall-agent landfall-agent.service agent.example.toml "$arch" "$binaries"
    debian_package landfall "$arch" "$binaries" 'passwd, util-linux, postgresql' 'landfall.lock operator-token client.toml tls postgres postgres.log run'
    debian_package landfall-agent "$arch" "$binaries" passwd 'agent.toml credential ca.pem outbox crawls'
done
(cd "$out" && sha256sum -- *.tar.gz *.deb >SHA256SUMS)
echo "package: $LANDFALL_LONG_VERSION, in $out:"
(cd "$out" && ls -l --block-size=K -- * | awk '{ print "  " $5 "\t" $NF }')
