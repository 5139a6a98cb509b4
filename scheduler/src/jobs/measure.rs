//! Measuring: orders each agent to measure the beacons of other agents, and one prober after
//! another to measure a site. Each pass ends overdue orders, creates new orders within every
//! prober's limits, and moves submitted tasks to the state measuring. Each site and each address
//! has at most one open order, so that all probers together send at most one probe per
//! `measure.site_interval` to each site and each address. The address of a new site is unknown, so
//! its first order only asks for the address.

mod mesh;
mod order_lifetime;
mod pass;
pub(crate) mod prober_choice;
pub(crate) mod probers;
mod sites;

#[cfg(test)]
mod address_lock_tests;

pub(super) use order_lifetime::order_lifetime;
pub use pass::Measure;
