//! Checks the host name that agents resolve to reach the scheduler, and this machine's clock:
//! whether it is synchronised, and how far it differs from the database's clock.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Stdio;

use chrono::TimeDelta;
use tokio::net::lookup_host;
use tokio::process::Command;

use super::check_result::{CheckResult, in_time};
use crate::app::address::AdvertisedAddress;

const NAME: &str = "name";

/// The addresses to which a name resolves on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resolved {
    /// The addresses, each with a flag: whether it belongs to this machine.
    To(Vec<(IpAddr, bool)>),
    Failed(String),
}

pub(super) async fn resolve(host: &str) -> Result<Resolved, CheckResult> {
    let found = match in_time(NAME, lookup_host((host, 0))).await? {
        Ok(found) => found,
        Err(error) => return Ok(Resolved::Failed(error.to_string())),
    };
    let mut addresses: Vec<(IpAddr, bool)> = found.map(|found| (found.ip(), is_here(found.ip()))).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(Resolved::To(addresses))
}

/// Whether the address belongs to this machine. A socket can be bound only to an address of this
/// machine.
fn is_here(ip: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}

pub(super) fn judge_name(
    dialled: &AdvertisedAddress,
    advertised: bool,
    listen: SocketAddr,
    resolved: &Result<Resolved, CheckResult>,
) -> CheckResult {
    let (host, url) = (&dialled.host, dialled.url("https"));
    let advertise = "start the scheduler with --advertise HOST:PORT, a name or address that agents can reach";
    let addresses = match resolved {
        Err(hangs) => return hangs.clone(),
        Ok(Resolved::Failed(why)) => {
            let text = format!("agents connect to {url}, but {host} does not resolve here: {why}");
            return CheckResult::wrong(NAME, text, format!("add {host} to the DNS, or {advertise}"));
        }
        Ok(Resolved::To(addresses)) => addresses,
    };
    let listed = addresses.iter().map(|(ip, _)| ip.to_string()).collect::<Vec<_>>().join(", ");
    let to = if listed == *host { String::new() } else { format!(", which is {listed}") };
    if addresses.iter().all(|(ip, _)| ip.is_loopback()) {
        let text = format!("agents connect to {url}{to}: on this machine only loopback");
        let literal = host.parse::<IpAddr>().is_ok();
        let remedy = format!("{advertise}; /etc/hosts of this machine may hide what the name is elsewhere");
        return match literal {
            true => CheckResult::wrong(NAME, text, advertise),
            false => CheckResult::note(NAME, text, remedy),
        };
    }
    if listen.ip().is_unspecified() && !advertised {
        let text = format!("agents connect to {url}{to}, this machine's own name");
        return CheckResult::note(NAME, text, format!("if agents do not know this name, {advertise}"));
    }
    let elsewhere = match addresses.iter().any(|(_, here)| *here) {
        true => "",
        false => "; this machine has no such address, so it must be forwarded",
    };
    CheckResult::ok(NAME, format!("agents connect to {url}{to}{elsewhere}"))
}

const CLOCK: &str = "clock";
/// Maximum difference between the clocks of two machines. The same limit applies to agents' clocks.
/// If a clock is wrong, valid certificates may be refused, and logs of several machines cannot be
/// compared.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::seconds(60);

/// Whether the kernel reports that the clock is synchronised; `None` if unknown.
///
/// Reading the kernel's flag with `adjtimex` would need unsafe code. Therefore systemd's program
/// `timedatectl` is run, which prints the flag.
pub(super) async fn synchronised() -> Option<bool> {
    let mut asked = Command::new("timedatectl");
    asked.args(["show", "--property=NTPSynchronized", "--value"]);
    asked.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let said = in_time(CLOCK, asked.output()).await.ok()?.ok()?;
    match said.stdout.trim_ascii() {
        b"yes" => Some(true),
        b"no" => Some(false),
        _ => None,
    }
}

/// Judges the clock. `offset` is how far this machine's clock is ahead of the database's; `None` if
/// unknown.
pub(super) fn judge_clock(synchronised: Option<bool>, offset: Option<TimeDelta>) -> CheckResult {
    let difference = offset.map(|offset| {
        let seconds = offset.as_seconds_f64().abs();
        format!("{seconds:.1} s from the database's clock")
    });
    let kernel = synchronised.map(|synchronised| if synchronised { "synchronised" } else { "not synchronised" });
    let parts: Vec<String> = kernel.map(str::to_owned).into_iter().chain(difference).collect();
    let text = parts.join(", ");
    let remedy = "synchronise the clock by NTP, for example with Debian's package systemd-timesyncd";
    if offset.is_some_and(|offset| offset.abs() > CLOCKS_DIFFER) {
        return CheckResult::wrong(CLOCK, text, format!("{remedy}, on this machine and the database's"));
    }
    match (synchronised, text.is_empty()) {
        (Some(false), _) => CheckResult::note(CLOCK, text, remedy),
        (_, true) => CheckResult::skip(CLOCK, "whether it is synchronised is unknown: systemd does not say"),
        _ => CheckResult::ok(CLOCK, text),
    }
}
