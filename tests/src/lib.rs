//! The Landfall lab: the emulated WAN, the cluster harness, the demo.
//!
//! [`scenario`] says what is emulated; [`wan`] delays, or [`tun`] does; [`sites`], [`beacons`] and [`names`] are what agents meet;
//! [`cluster`] runs the real binaries among them. The scheduler never sees a scenario.

#[cfg(feature = "experiments")]
pub mod chaos;
pub mod cli;
pub mod cluster;
pub mod demo;
pub mod evidence;
pub mod experiments;
#[cfg(feature = "experiments")]
pub mod world;
