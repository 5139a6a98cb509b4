//! Emulates a network: sites, a name server and the paths between addresses. [`crate::cluster`]
//! starts the agents as processes in the world's namespaces.

pub mod addresses;
pub mod beacons;
mod emulated_network;
pub mod from_matrix;
mod grade;
pub mod lateness;
pub mod layout;
pub mod names;
pub mod odd_sites;
pub mod reno;
pub mod response_delays;
pub mod scenario;
pub mod site_pages;
pub mod site_servers;
pub mod timer;
pub mod tun;
pub mod void_timing;

pub use emulated_network::World;
pub use grade::Grade;
