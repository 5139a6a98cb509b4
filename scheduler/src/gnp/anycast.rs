//! Distinguishes sites in several locations (anycast, CDN, GeoDNS) from sites in one location.
//!
//! There are three independent kinds of evidence, strongest first:
//!
//! 1. *Light.* If a host has one location, the paths from two landmarks to the host together form a
//!    path between the landmarks. If the sum of the two round trips is less than light in fibre
//!    needs for a round trip between the landmarks' positions, the host certainly has at least two
//!    locations.
//! 2. *The map.* [`places`] computes the log odds that the host has several locations instead of
//!    one. [`pairs`] finds pairs of landmarks whose round trips to the host add up to less than the
//!    distance between the two landmarks. The score is a weighted sum of the results of [`places`]
//!    and [`pairs`]. A host is suspect if its score is more than two standard deviations above the
//!    agents' mean score. The agents show which scores are normal, because each agent certainly has
//!    one location. A fixed limit would not work, because networks differ in how often routing
//!    violates the triangle inequality.
//! 3. *Addresses.* If landmarks resolved addresses in different prefixes (/24, /48), DNS gave them
//!    different answers. Several addresses in one prefix only strengthen other evidence, because
//!    they often come from round-robin DNS alone.
//!
//! The combined result is a confidence: the probability that the host has several locations,
//! assuming that half of all hosts do.

mod addresses;
mod evidence;
mod light;
mod map_score;
mod pairs;
mod places;
mod verdict;

pub use evidence::AnycastEvidence;
pub use verdict::{AnycastDetector, LocationVerdict, Observation};
