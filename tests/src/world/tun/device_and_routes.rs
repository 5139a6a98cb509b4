//! Sets up a TUN device, with its addresses and routes.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::kernel_settings;
use super::namespace::NetNamespace;

const TUN: &str = "/dev/net/tun";
/// The name of the TUN device in every namespace.
const NAME: &str = "wan";
/// Maximum size of a packet in bytes, as on Ethernet.
pub(super) const MTU: usize = 1500;
/// Maximum number of packets that wait for the router. A burst would overflow the default of 500,
/// but only the scenario's rules may cause losses.
const QUEUE: u32 = 20_000;

/// The addresses of a namespace.
#[derive(Debug, Clone)]
pub(super) enum Addresses {
    One(Ipv4Addr),
    /// All addresses in these networks, written as `address/bits`.
    All(Vec<String>),
}

/// Creates the device, addresses and routes of a namespace, and writes its kernel settings.
pub(super) fn set_up(namespace: &NetNamespace, addresses: Addresses) -> anyhow::Result<SyncDevice> {
    // The device file is checked first, because opening a missing file could create an ordinary
    // file.
    ensure!(Path::new(TUN).exists(), "there is no {TUN}");
    namespace.run(move || {
        kernel_settings::write_all()?;
        let device = DeviceBuilder::new().name(NAME).enable(false).build_sync().context("make a TUN device")?;
        device.set_nonblocking(true).context("make the TUN device answer at once")?;
        ip(&commands(&addresses))?;
        Ok(device)
    })?
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
