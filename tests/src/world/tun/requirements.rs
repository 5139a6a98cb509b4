//! Tries whether this machine can run the tun grade, and says what the grade needs.

use super::device_and_routes::{self, Addresses};
use super::namespace::{NamespaceThread, NetNamespace};
use crate::world::addresses::Lane;

pub(super) const NEEDS: &str = "the tun grade takes root, /dev/net/tun and iproute2";

/// Why this machine does not support the tun grade; `None` if it does.
pub fn missing() -> Option<String> {
    let tried = || {
        let namespace = NetNamespace::inside(NamespaceThread::start("wan-trial")?);
        device_and_routes::set_up(&namespace, Addresses::One(Lane::TUN.agent(0))).map(|_| ())
    };
    tried().err().map(|error: anyhow::Error| format!("{NEEDS}: {error:#}"))
}
