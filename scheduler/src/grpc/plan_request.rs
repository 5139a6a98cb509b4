//! Validates what `landfall plan` asks: the agents to add and remove, the strategy and the number
//! of suggestions, each within its limit.

use std::ops::RangeInclusive;

use landfall_proto::v1;

use crate::grpc::operator::convert::{InvalidField, agent_name, line};
use crate::model::Strategy;

/// Maximum number of agents to add in a plan.
const MOST_ADDED: usize = 100;
/// Maximum number of agents to remove in a plan. No fleet has more agents.
const MOST_REMOVED: usize = 100_000;
/// Maximum number of places to suggest for new agents.
const MOST_SUGGESTED: u32 = 20;
/// The valid numbers of slots for an agent. The database's schema has the same bounds.
const SLOTS: RangeInclusive<u32> = 1..=10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhatIfRequest {
    pub add: Vec<Addition>,
    /// Agents to remove, by name.
    pub remove: Vec<String>,
    /// The strategy that assigns sites to agents.
    pub strategy: Strategy,
    /// Number of places to suggest.
    pub suggest: usize,
}

/// An agent to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addition {
    /// The agent's name; if `None`, a name is formed from the city and the carrier.
    pub name: Option<String>,
    pub city: String,
    pub carrier: String,
    /// The agent or site beside which the new agent is placed on the map.
    pub near: String,
    /// Number of slots; if `None`, as many as the median agent has.
    pub slots: Option<u32>,
}

impl TryFrom<v1::PlanRequest> for WhatIfRequest {
    type Error = InvalidField;

    fn try_from(request: v1::PlanRequest) -> Result<Self, InvalidField> {
        let v1::PlanRequest { add, remove, strategy, suggest } = request;
        if add.len() > MOST_ADDED {
            return Err(InvalidField::new(
                "add",
                format!("{} agents, but at most {MOST_ADDED} can be added", add.len()),
            ));
        }
        if remove.len() > MOST_REMOVED {
            let problem = format!("{} agents, but at most {MOST_REMOVED} can be removed", remove.len());
            return Err(InvalidField::new("remove", problem));
        }
        if suggest > MOST_SUGGESTED {
            let problem = format!("{suggest} places, but at most {MOST_SUGGESTED} can be suggested");
            return Err(InvalidField::new("suggest", problem));
        }
        let strategy = match strategy {
            none if none.is_empty() => Strategy::default(),
            given => given.parse().map_err(InvalidField::of("strategy"))?,
        };
        Ok(Self {
            add: add.into_iter().map(Addition::try_from).collect::<Result<_, _>>()?,
            remove,
            strategy,
            suggest: usize::try_from(suggest).unwrap_or(usize::MAX),
        })
    }
}

impl TryFrom<v1::PlannedAddition> for Addition {
    type Error = InvalidField;

    fn try_from(addition: v1::PlannedAddition) -> Result<Self, InvalidField> {
        let v1::PlannedAddition { name: given, city, carrier, near, slots } = addition;
        if let Some(slots) = slots.filter(|slots| !SLOTS.contains(slots)) {
            let problem = format!("must be {} to {}, not {slots}", SLOTS.start(), SLOTS.end());
            return Err(InvalidField::new("slots", problem));
        }
        Ok(Self {
            name: (!given.is_empty()).then(|| agent_name("name", &given)).transpose()?,
            city: line("city", &city)?,
            carrier: line("carrier", &carrier)?,
            near: line("near", &near)?,
            slots,
        })
    }
}
