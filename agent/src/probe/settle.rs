//! Finds the origin at which a site answers.

use std::net::IpAddr;

use crate::origin::Origin;

/// Where a site answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// The origin.
    pub origin: Origin,
    /// The vetted address that answered.
    pub address: IpAddr,
}
