//! The Landfall lab: the emulated WAN, the cluster harness, the demo and the experiments.
//!
//! [`world::scenario`] defines what is emulated. [`world::response_delays`] or [`world::tun`] adds
//! the delays. [`world::site_servers`] and [`world::beacons_and_names`] are the servers that agents
//! reach. [`cluster`] runs the real binaries in this emulated network. The scheduler never sees the
//! scenario.

#[cfg(feature = "experiments")]
pub mod chaos;
pub mod cluster;
pub mod demo;
#[cfg(feature = "experiments")]
pub mod dropped;
pub mod evidence;
#[cfg(feature = "experiments")]
pub mod experiments;
pub mod machine;
pub mod world;
