//! Sets up a TUN device, with its addresses and routes.

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::namespace::NetNamespace;

const TUN: &str = "/dev/net/tun";
/// The name of the TUN device in every namespace.
const NAME: &str = "wan";
/// Maximum size of a packet in bytes, as on Ethernet.
pub(super) const MTU: usize = 1500;
/// Maximum number of packets that wait for the router. A burst would overflow the default of 500,
/// but only the scenario's rules may cause losses.
const QUEUE: u32 = 20_000;

/// Settings in every namespace, as paths below /proc/sys/net. A setting that the kernel does not
/// have is skipped.
const SETTINGS: [(&str, &str); 6] = [
    // Scenarios have no IPv6. With IPv6, the router would have to carry packets of neighbour
    // discovery.
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    // A connection must not reuse metrics of earlier connections, because runs would then influence
    // each other.
    ("ipv4/tcp_no_metrics_save", "1"),
    // Processes may send ICMP echo requests without root.
    ("ipv4/ping_group_range", "0 2147483647"),
    // In the agents' namespaces, the lab listens on the schedulers' ports, which come from the
    // host's range of ephemeral ports (by default 32768 to 60999). So the ephemeral ports of a
    // namespace must be lower.
    ("ipv4/ip_local_port_range", "1024 32767"),
    // Reverse path filtering is useless, because there is only one route.
    ("ipv4/conf/all/rp_filter", "0"),
];

/// The addresses of a namespace.
#[derive(Debug, Clone)]
pub(super) enum Addresses {
    One(Ipv4Addr),
    /// All addresses in these networks, written as `address/bits`.
    All(Vec<String>),
}

/// Creates the device, addresses and routes of a namespace.
pub(super) fn set_up(namespace: &NetNamespace, addresses: Addresses) -> anyhow::Result<SyncDevice> {
    // The device file is checked first, because opening a missing file could create an ordinary
    // file.
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
        // A kernel without IPv6 does not have the settings of IPv6.
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

/// Runs `ip` (iproute2) in batch mode, with one command per line.
fn ip(lines: &str) -> anyhow::Result<()> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("run ip, of the Debian package iproute2")?;
    // Writing does not block, because the lines fit into the buffer of the pipe.
    child.stdin.take().context("talk to ip")?.write_all(lines.as_bytes()).context("talk to ip")?;
    let output = child.wait_with_output().context("wait for ip")?;
    ensure!(output.status.success(), "ip: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
