//! The section `[beacon]` of `agent.toml`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::addresses::networks;

/// The beacon's default address.
pub const DEFAULT_BEACON: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7180);

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BeaconConfig {
    /// Whether to run the beacon. An agent without a beacon cannot be a landmark.
    pub enabled: bool,
    /// The address to listen on; port 0 takes any free port.
    pub listen: SocketAddr,
    /// The URL at which other agents reach the beacon. The URL is needed only if its address
    /// differs from the address from which this agent connects to the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// Private networks in which the agent may measure beacons of other agents. In these networks
    /// the agent connects to nothing else.
    #[serde(deserialize_with = "networks", skip_serializing_if = "Vec::is_empty")]
    pub allow_net: Vec<IpNet>,
}

impl Default for BeaconConfig {
    fn default() -> Self {
        Self { enabled: true, listen: DEFAULT_BEACON, advertise: None, allow_net: Vec::new() }
    }
}
