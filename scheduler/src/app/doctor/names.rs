//! Checks the host name that agents resolve to reach the scheduler.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use tokio::net::lookup_host;

use super::check_result::CheckResult;
use super::time_limit::in_time;
use crate::app::address::AdvertisedAddress;

const CHECK: &str = "name";

/// The addresses to which a name resolves on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resolved {
    /// The addresses, each with a flag: whether it belongs to this machine.
    To(Vec<(IpAddr, bool)>),
    Failed(String),
}

pub(super) async fn look(host: &str) -> Result<Resolved, CheckResult> {
    let found = match in_time(CHECK, lookup_host((host, 0))).await? {
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

pub(super) fn judge(
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
            return CheckResult::wrong(CHECK, text, format!("add {host} to the DNS, or {advertise}"));
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
            true => CheckResult::wrong(CHECK, text, advertise),
            false => CheckResult::note(CHECK, text, remedy),
        };
    }
    if listen.ip().is_unspecified() && !advertised {
        let text = format!("agents connect to {url}{to}, this machine's own name");
        return CheckResult::note(CHECK, text, format!("if agents do not know this name, {advertise}"));
    }
    let elsewhere = match addresses.iter().any(|(_, here)| *here) {
        true => "",
        false => "; this machine has no such address, so it must be forwarded",
    };
    CheckResult::ok(CHECK, format!("agents connect to {url}{to}{elsewhere}"))
}
