//! Locating: when every prober has answered for a site, computes the site's placement in the
//! embedding and moves its tasks to the state located.
//!
//! Every wait is bounded. If no prober could measure a site, its tasks become located, and the
//! reason is stored. If a site has too few measurements, or the fleet has no map, its tasks become
//! located, but the site gets no placement. The wait for an embedding has a time limit.

mod address_lookup;
pub mod geoip;
mod pass;
mod placing;
pub mod refined;
mod relocation;
pub(super) mod verdicts;

pub use pass::Locate;
