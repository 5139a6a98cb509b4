//! One TUN device, and the addresses and routes around it.

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::namespace::NetNamespace;

/// Where devices come from.
const TUN: &str = "/dev/net/tun";
/// What every device is called: each is alone in its namespace.
const NAME: &str = "wan";
/// Bytes of a packet at most, as on Ethernet.
pub(super) const MTU: usize = 1500;
/// Packets that may wait for the router. The usual 500 overflow in a burst, and the kernel's losses are not the scenario's.
const QUEUE: u32 = 20_000;

/// What is written below /proc/sys/net in every namespace, where it is there, and why.
const SETTINGS: [(&str, &str); 6] = [
    // The scenarios know no IPv6, and its chatter would be carried.
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    // A connection must not begin with what an earlier one learned: runs would depend on each other.
    ("ipv4/tcp_no_metrics_save", "1"),
    // Every process may send ICMP echoes without a raw socket.
    ("ipv4/ping_group_range", "0 2147483647"),
    // The lab listens on the schedulers' ports in here: they come from the host's range, which is above this one.
    ("ipv4/ip_local_port_range", "1024 32767"),
    // Packets come back on the only way there is.
    ("ipv4/conf/all/rp_filter", "0"),
];

/// Which addresses a namespace answers at.
#[derive(Debug, Clone)]
pub(super) enum Addresses {
    One(Ipv4Addr),
    /// Everything in these networks, each written as `address/bits`.
    All(Vec<String>),
}

/// Gives a namespace its device and its addresses; returns the router's end of it.
///
/// # Errors
/// When `ip` or the system refuses; the message repeats what it said.
pub(super) fn set_up(namespace: &NetNamespace, addresses: Addresses) -> anyhow::Result<SyncDevice> {
    // Opening it could create it otherwise.
    ensure!(Path::new(TUN).exists(), "there is no {TUN}");
    namespace.run(move || {
        for (setting, value) in SETTINGS {
            write(setting, value)?;
        }
        let device = DeviceBuilder::new().name(NAME).enable(false).build_sync().context("make a TUN device")?;
        device.set_nonblocking(true).context("make the TUN device answer at once")?;
        ip(&commands(&addresses))?;
        Ok(device)
    })?
}

fn write(setting: &str, value: &str) -> anyhow::Result<()> {
    let file = Path::new("/proc/sys/net").join(setting);
    match fs::write(&file, value) {
        // A kernel without IPv6 has nothing to switch off.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        written => written.with_context(|| format!("write {value} to {}", file.display())),
    }
}

fn commands(addresses: &Addresses) -> String {
    let mut lines = format!("link set dev lo up\nlink set dev {NAME} txqueuelen {QUEUE} mtu {MTU} up\n");
    match addresses {
        Addresses::One(address) => lines.push_str(&format!("addr add {address}/32 dev {NAME}\n")),
        Addresses::All(networks) => {
            for network in networks {
                lines.push_str(&format!("route add local {network} dev lo\n"));
            }
        }
    }
    lines.push_str(&format!("route add default dev {NAME}\n"));
    lines
}

/// Runs iproute2's `ip` with one command a line.
fn ip(lines: &str) -> anyhow::Result<()> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("run ip, of the Debian package iproute2")?;
    // The lines fit into the pipe, so neither end waits for the other.
    child.stdin.take().context("talk to ip")?.write_all(lines.as_bytes()).context("talk to ip")?;
    let output = child.wait_with_output().context("wait for ip")?;
    ensure!(output.status.success(), "ip: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
