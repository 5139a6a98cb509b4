//! Determines how a strategy splits a site among agents.

use crate::model::Strategy;

use super::error::CapacityError;

/// The largest K of `gnp-topK` that a plan supports.
pub(super) const TOP: usize = 3;

/// How a strategy splits a site among agents, on average over its draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SiteSplit {
    /// Evenly over all agents.
    All,
    /// Evenly over this many nearest agents, 1 to 3, or over all agents if there are fewer.
    Nearest(usize),
}

impl TryFrom<Strategy> for SiteSplit {
    type Error = CapacityError;

    fn try_from(strategy: Strategy) -> Result<Self, CapacityError> {
        match strategy {
            Strategy::Random => Ok(Self::All),
            Strategy::GnpTop(k) if k.get() <= TOP => Ok(Self::Nearest(k.get())),
            Strategy::Hash
            | Strategy::Kademlia
            | Strategy::Domain
            | Strategy::Geographic
            | Strategy::Prefix
            | Strategy::GnpTop(_)
            | Strategy::GnpBalanced
            | Strategy::GnpConfirmed
            | Strategy::EarliestFinish => Err(CapacityError::Unforeseen { strategy, most: TOP }),
        }
    }
}
