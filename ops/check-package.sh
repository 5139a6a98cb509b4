#!/usr/bin/env bash
# Tests the packages in target/package as an operator would use them, in fresh Debian roots without
# systemd: the scheduler's package in Debian 12, the agent's in Debian 11. Enrols over TLS, crawls
# local sites, and removes the agent's package during a crawl, after which the agent must have
# returned its leases. Then installs the package again, resumes the crawls, upgrades, and purges
# both packages. Prints the duration of the steps.
#
# Everything runs in new namespaces (network, processes, mounts), which disappear when the script
# ends. debootstrap makes the roots once, in target/roots. It downloads about 150 MB and takes two
# minutes. Everything else takes a minute. Run as root.
#
#   ops/check-package.sh
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
packages=$target/package
roots=$target/roots
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
# The number of sites, the scheduler's address, and the name by which agents resolve the address.
# The address is not loopback, so the scheduler uses TLS.
sites=4
address=198.51.100.1
name=scheduler.test
arch=$(dpkg --print-architecture)

say() {
    echo "check-package: $*"
}

fail() {
    echo "check-package: $*" >&2
    exit 1
}

make_root() { # RELEASE INCLUDED...
    local release=$1
    shift
    if [ ! -e "$roots/$release/.whole" ]; then
        say "making a root of $release${1:+ with $*}"
        rm -rf "${roots:?}/$release"
        mkdir -p "$roots/$release"
        local included=$*
        debootstrap --variant=minbase ${included:+--include="${included// /,}"} "$release" "$roots/$release" "$mirror" >"$roots/$release.log" 2>&1 ||
            fail "debootstrap of $release failed: $roots/$release.log says why"
        touch "$roots/$release/.whole"
    fi
}

# Mounts a root file system over a permanent one, which stays unchanged.
mount_root() { # RELEASE PLACE
    mkdir -p "$work/$2"/{changes,own,root}
    mount -t overlay overlay -o "lowerdir=$roots/$1,upperdir=$work/$2/changes,workdir=$work/$2/own" "$work/$2/root"
    mount -t proc proc "$work/$2/root/proc"
    mount --rbind /dev "$work/$2/root/dev"
    mkdir -p "$work/$2/root/packages"
    mount --bind "$packages" "$work/$2/root/packages"
}

agent_root() {
    chroot "$work/agent/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"
}

scheduler_root() {
    chroot "$work/scheduler/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"
}

# Waits until a command succeeds. Runs the command again after a pause of 0.1 s, so the times that
# this script measures are not exact.
until_so() { # SECONDS WHAT COMMAND...
    local seconds=$1 what=$2 end
    shift 2
    end=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || fail "$what: not within $seconds s"
        sleep 0.1
    done
}

milliseconds() {
    date +%s%3N
}

# Serves minimal sites on which every page links to the next one, endlessly.
serve_sites() {
    python3 - <<'END'
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        page = self.path.strip("/")
        found = page == "" or page.isdigit()
        body = f'<a href="/{int(page or 0) + 1}">next</a>'.encode() if found else b""
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_HEAD = do_GET
    def log_message(self, *words):
        pass
ThreadingHTTPServer(("0.0.0.0", 8080), Site).serve_forever()
END
}

# Prints the number of a batch's tasks that are in the given state.
count_of() { # BATCH STATE
    scheduler_root landfall batches show "$1" --format json | python3 -c '
import json, sys
batch = json.load(sys.stdin)
print(batch[sys.argv[1]])' "$2"
}

is_connected() { # yes or no
    scheduler_root landfall agents list --format json | python3 -c '
import json, sys
sys.exit(0 if all(agent["connected"] == (sys.argv[1] == "yes") for agent in json.load(sys.stdin)) else 1)' "$1"
}

has_leases() { # BATCH HOW_MANY
    [ "$(count_of "$1" leased)" = "$2" ]
}

start_agent() {
    agent_root runuser -u landfall-agent -- landfall-agent run --allow-net 127.0.0.0/8 >>"$work/agent.log" 2>&1 &
}

install_agent() {
    agent_root apt-get install -qq -y "/packages/$agent_deb" >"$work/apt.log" 2>&1 || {
        cat "$work/apt.log" >&2
        fail "the agent's package was not installed"
    }
}

inside() {
    work=$(mktemp -d)
    # The mount disappears with the namespace. Files written here stay in memory.
    mount -t tmpfs tmpfs "$work"
    trap 'status=$?; [ "$status" = 0 ] || tail -n 20 "$work"/*.log >&2 || true' EXIT
    ip link set lo up
    ip address add "$address/32" dev lo
    mount_root bookworm scheduler
    mount_root bullseye agent
    agent_deb=$(cd "$packages" && ls landfall-agent_*_"$arch".deb)
    scheduler_deb=$(cd "$packages" && ls landfall_*_"$arch".deb)
    echo "$address $name" >>"$work/agent/root/etc/hosts"
    serve_sites &

    say "the scheduler, from its package"
    scheduler_root dpkg -i "/packages/$scheduler_deb" >"$work/dpkg.log" 2>&1
    ! grep -qs landfall /proc/[0-9]*/comm || fail "the installation started a process"
    sed -i -e "s/^listen = .*/listen = \"$address:7171\"/" -e '0,/^#: contact_url = /s//contact_url = /' "$work/scheduler/root/etc/landfall/landfall.toml"
    scheduler_root runuser -u landfall -- landfall up --config /etc/landfall/landfall.toml --advertise "$name:7171" >"$work/scheduler.log" 2>&1 &
    until_so 60 "the scheduler answers" scheduler_root landfall agents list
    scheduler_root landfall --version
    for page in man/man1/landfall-agents-list.1.gz bash-completion/completions/landfall zsh/vendor-completions/_landfall; do
        scheduler_root test -s "/usr/share/$page" || fail "the package does not contain /usr/share/$page"
    done
    enrol=$(scheduler_root landfall agents enrol --city Harbin --carrier CERNET --format json | python3 -c 'import json, sys; print(json.load(sys.stdin)["command"])')

    say "the agent, in three commands, on $(agent_root sh -c '. /etc/os-release; echo "$PRETTY_NAME"')"
    begun=$(milliseconds)
    install_agent
    installed=$(milliseconds)
    agent_root sh -c "$enrol"
    enrolled=$(milliseconds)
    start_agent
    until_so 60 "the agent is connected" is_connected yes
    connected=$(milliseconds)
    agent_root landfall-agent --version
    say "installed in $((installed - begun)) ms, enrolled in $((enrolled - installed)) ms, connected in $((connected - enrolled)) ms; together $((connected - begun)) ms, at most 60000"
    [ $((connected - begun)) -le 60000 ] || fail "that is too long"
    [ "$(agent_root stat -c '%U %a' /var/lib/landfall-agent/credential)" = 'landfall-agent 600' ] || fail "other users can read the credential"
    said=$(agent_root landfall-agent run 2>&1) && fail "root ran the service's agent"
    say "as root it prints: $said"

    say "crawls $sites sites up to the page limit"
    list=$(for i in $(seq "$sites"); do echo "http://127.0.1.$i:8080"; done)
    scheduler_root sh -c "cat >/tmp/list.txt" <<<"$list"
    scheduler_root landfall sites submit /tmp/list.txt --batch short --max-pages 3
    until_so 120 "the short batch is done" eval '[ "$(count_of short truncated)" = "$sites" ]'

    say "removes the package during a crawl"
    scheduler_root landfall sites submit /tmp/list.txt --batch long --max-pages 25
    until_so 60 "the long batch is being crawled" has_leases long "$sites"
    begun=$(milliseconds)
    agent_root dpkg --remove landfall-agent
    say "removed in $(($(milliseconds) - begun)) ms"
    has_leases long 0 || fail "$(count_of long leased) leases were not returned"
    is_connected no || fail "the agent is still connected"
    scheduler_root landfall events --batch long --newest "$sites" || true
    agent_root test -e /var/lib/landfall-agent/credential || fail "the removal deleted the credential"
    ! agent_root test -e /usr/bin/landfall-agent || fail "the binary still exists"

    say "installs it again, and starts it with its former credential"
    install_agent
    start_agent
    until_so 60 "the long batch is being crawled again" has_leases long "$sites"
    say "upgrades it during a crawl"
    agent_root dpkg -i "/packages/$agent_deb"
    has_leases long 0 || fail "$(count_of long leased) leases were not returned before the upgrade"
    start_agent
    until_so 180 "the long batch is done" eval '[ "$(count_of long truncated)" = "$sites" ]'

    say "purges both"
    agent_root dpkg --purge landfall-agent
    ! agent_root test -e /var/lib/landfall-agent || fail "a purge left $(agent_root ls -A /var/lib/landfall-agent)"
    scheduler_root dpkg --purge landfall
    ! scheduler_root test -e /var/lib/landfall || fail "a purge left $(scheduler_root ls -A /var/lib/landfall)"
    ! scheduler_root test -e /etc/landfall || fail "a purge left /etc/landfall"
    say "passed"
}

case "${1-}" in
'') ;;
--inside)
    inside
    exit
    ;;
*)
    echo "check-package: unknown argument '$1': the script takes none" >&2
    exit 2
    ;;
esac
[ "$(id -u)" = 0 ] || fail "debootstrap and namespaces need root"
ls "$packages"/landfall-agent_*_"$arch".deb >/dev/null 2>&1 || fail "there are no packages for $arch in $packages: run make package first"
(cd "$packages" && sha256sum --check --quiet SHA256SUMS) || fail "the packages do not match their SHA256SUMS"
ops/setup.sh --for check-package
make_root bullseye
make_root bookworm postgresql
exec unshare --mount --net --pid --fork --kill-child --mount-proc "$PWD/ops/check-package.sh" --inside
