//! The tun grade of the emulated WAN. Real packets pass between network namespaces, and the lab's
//! router delays, queues and drops them.
//!
//! Every agent has its own namespace and address. All sites and the lab's servers share one
//! namespace. The kernel runs TCP and answers ICMP. The grade needs root and `/dev/net/tun`.

mod namespace;
mod packet_network;
mod paths_and_cuts;
mod router;
#[cfg(test)]
mod tests;

pub use self::namespace::{NetNamespace, missing};
pub use self::packet_network::{BEACON_PORT, Network};
pub use self::paths_and_cuts::{CutDirection, LinkCuts};
pub use self::router::Traffic;
