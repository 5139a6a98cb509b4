//! The Landfall lab: the emulated WAN, the cluster harness, the demo.
//!
//! [`scenario`] says what is emulated; [`wan`] delays, or [`tun`] does; [`sites`], [`beacons`] and [`names`] are what agents meet;
//! [`cluster`] runs the real binaries among them. The scheduler never sees a scenario.

#[cfg(feature = "experiments")]
pub mod balance;
pub mod beacons;
#[cfg(feature = "experiments")]
pub mod bench;
#[cfg(feature = "experiments")]
pub mod chaos;
pub mod check;
pub mod cli;
pub mod cluster;
pub mod demo;
pub mod figures;
#[cfg(feature = "experiments")]
pub mod judge;
pub mod layout;
pub mod machine;
pub mod names;
pub mod odd_sites;
pub mod pace;
#[cfg(feature = "experiments")]
pub mod paper;
pub mod process;
pub mod reno;
pub mod report;
pub mod scenario;
pub mod sites;
#[cfg(feature = "experiments")]
pub mod sweep;
pub mod timer;
pub mod truth;
pub mod tun;
pub mod wan;
pub mod web;
pub mod with_postgres;
pub mod witness;
pub mod world;
