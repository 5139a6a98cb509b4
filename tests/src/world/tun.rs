//! The tun grade of the emulated WAN. Real packets pass between network namespaces, and the lab's
//! router delays, queues and drops them.
//!
//! Every agent has its own namespace and address. All sites and the lab's servers share one
//! namespace. The kernel runs TCP and answers ICMP. The grade needs root and `/dev/net/tun`.

mod cuts;
mod delay_and_loss;
mod device_and_routes;
mod forward_to_schedulers;
mod kernel_settings;
mod namespace;
mod packet_network;
mod paths;
mod requirements;
mod router;
#[cfg(test)]
mod tests;

pub use cuts::{CutDirection, LinkCuts};
pub use delay_and_loss::Traffic;
pub use namespace::NetNamespace;
pub use packet_network::{BEACON_PORT, Network};
pub use requirements::missing;
