//! Emulates a network: sites, a name server and the paths between addresses. [`crate::cluster`]
//! starts the agents as processes in the world's namespaces.

pub mod addresses;
pub mod beacons_and_names;
mod emulated_network;
pub mod from_matrix;
pub mod odd_sites;
pub mod response_delays;
pub mod scenario;
pub mod site_pages;
pub mod site_servers;
pub mod timer;
pub mod tun;

pub use self::emulated_network::{Grade, World, too_busy};
