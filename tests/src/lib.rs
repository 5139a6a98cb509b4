//! The Landfall lab: the emulated WAN, the cluster harness, the demo.
//!
//! [`scenario`] says what is emulated; [`wan`] delays, or [`tun`] does; [`sites`], [`beacons`] and [`names`] are what agents meet;
//! [`cluster`] runs the real binaries among them. The scheduler never sees a scenario.

pub mod balance;
pub mod beacons;
pub mod bench;
pub mod chaos;
pub mod check;
pub mod cluster;
pub mod demo;
pub mod figures;
pub mod judge;
pub mod layout;
pub mod machine;
pub mod names;
pub mod odd_sites;
pub mod pace;
pub mod paper;
pub mod process;
pub mod reno;
pub mod report;
pub mod scenario;
pub mod sites;
pub mod sweep;
pub mod timer;
pub mod truth;
pub mod tun;
pub mod wan;
pub mod web;
pub mod with_postgres;
pub mod witness;
pub mod world;
