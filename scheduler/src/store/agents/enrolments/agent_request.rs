//! An agent request says for which agent the operator wants a token.

use std::time::Duration;

use crate::model::geo::Position;

/// An agent for which the operator requests a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRequest {
    pub name: Name,
    pub city: String,
    pub carrier: String,
    /// The country's ISO 3166-1 alpha-2 code; empty when unknown.
    pub country: String,
    pub position: Option<Position>,
    /// The agent's tags. If the operator gave none, an agent that is enrolled again keeps its
    /// previous tags.
    pub tags: Vec<String>,
    pub valid_for: Duration,
    /// Whether to replace an agent of this name that is in use.
    pub replaces: bool,
}

/// The name that an agent is to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    Given(String),
    /// A name formed from city and carrier, with a number appended if the name is taken.
    Formed(String),
}
