//! Locates the agents of a fleet, and finds the agents nearest to each site.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::gnp::{Embedding, Nearest, Placement};
use crate::model::AgentId;

use super::agent::{Agent, AgentChange};
use super::error::CapacityError;
use super::sites::Sites;

/// The agents in the fleet, either before or after the change.
pub(super) struct Fleet<'a> {
    /// Number of all agents, including those outside the fleet.
    pub(super) all: usize,
    /// The fleet's agents, with their indices among all agents.
    pub(super) there: Vec<(usize, &'a Agent)>,
    /// The fleet's agents as an embedding. The identifier of an agent is its index in the fleet.
    map: Embedding,
}

impl<'a> Fleet<'a> {
    /// The fleet without the agents whose change is `without`; `None` if no agent remains.
    pub(super) fn of(sites: &Sites, agents: &'a [Agent], without: AgentChange) -> Result<Option<Self>, CapacityError> {
        let there: Vec<(usize, &Agent)> =
            agents.iter().enumerate().filter(|(_, agent)| agent.change != without).collect();
        if there.is_empty() {
            return Ok(None);
        }
        let placed = |(number, (_, agent)): (i64, &(usize, &Agent))| {
            let placement = Placement { epoch: sites.epoch(), coordinate: agent.coordinate.clone(), fit_error: 0.0 };
            (AgentId::new(number), placement)
        };
        let placements: BTreeMap<AgentId, Placement> = (0..).zip(&there).map(placed).collect();
        let map = Embedding::from_parts(sites.epoch(), sites.dimensions(), Vec::new(), placements, 0.0)
            .map_err(|_| CapacityError::Coordinate(sites.dimensions()))?;
        // Fails if the map has more dimensions than [`Embedding::locator`] supports.
        map.locator().map_err(|_| CapacityError::Coordinate(sites.dimensions()))?;
        Ok(Some(Self { all: agents.len(), there, map }))
    }

    /// The nearest agents of each site in a part.
    pub(super) fn nearest(&self, sites: &Sites, part: &Range<usize>) -> Vec<NearestAgents> {
        // [`Fleet::of`] has checked that the map has a locator.
        let found = self.map.locator().ok().and_then(|locator| locator.nearest(sites.coordinates_of(part)).ok());
        found.unwrap_or_default().into_iter().map(NearestAgents).collect()
    }
}

/// The agents nearest to a site.
pub(super) struct NearestAgents(Nearest);

impl NearestAgents {
    /// The agents' indices in the fleet, and their round trips to the site in milliseconds, nearest
    /// first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.0.iter().filter_map(|(agent, rtt)| Some((usize::try_from(agent.get()).ok()?, rtt.as_millis_f64())))
    }
}
