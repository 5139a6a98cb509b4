//! `landfall plan`: validates what it asks, reads the state, resolves the requested names, and
//! computes the plan with [`capacity`].
//!
//! The data for the computation are read in one snapshot, and nothing is written. The computation
//! uses all cores, on its own threads.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread;

use landfall_proto::v1;
use sqlx::{PgConnection, PgPool};
use tokio::sync::Mutex;

use super::convert::{InvalidField, agent_name, line};
use crate::capacity::{self, Agent, AgentChange, CapacityError, Comparison, MOST_SITES, SiteSplit, Sites, Suggestions};
use crate::model::geo::Position;
use crate::model::site_name::SiteName;
use crate::model::{SiteId, Strategy, naming};
use crate::store;
use crate::store::assignments::past_crawls_and_site_facts;
use crate::store::embeddings::placements;
use crate::store::reports::capacity_and_map::{self, EnrolledAgent, LocatedEmbedding};
use crate::store::sites;
use crate::store::sites::positions_and_verdicts::{self, Source};
use crate::strategy::Speed;

/// A fixed seed, so that the same map always gives the same suggestions.
const SEED: u64 = 1;
/// The reason why an agent without coordinates is left out.
const NO_PLACE: &str = "has no place in this embedding: it had too few measurements when the embedding was fitted";
const DRAINING: &str = "takes no new work because it is draining";

#[derive(Debug, Clone)]
pub struct Plan {
    /// The embedding, and the number of sites placed in other embeddings.
    pub located: LocatedEmbedding,
    pub strategy: Strategy,
    /// Number of sites in the computation.
    pub sites: usize,
    /// Number of sites with several locations, which are not in the computation.
    pub suspects: u64,
    /// Number of sites whose size is known.
    pub known: usize,
    /// Pages and bytes assumed for a site of unknown size.
    pub usual: (u32, u64),
    /// The agents in the computation.
    pub agents: Vec<Agent>,
    /// The fleet before and after the changes.
    pub compared: Comparison,
    /// Agents not in the computation, with the reason.
    pub left_out: Vec<(String, &'static str)>,
    /// The suggestions, if any were requested.
    pub suggested: Option<Suggestions>,
    /// Names and positions of the suggested sites, in the order of the suggestions.
    pub picked: Vec<SuggestedSite>,
}

/// A site beside which the plan suggests a new agent.
#[derive(Debug, Clone, PartialEq)]
pub struct SuggestedSite {
    pub name: String,
    /// The site's position, and the source of the position.
    pub position: Option<(Position, Source)>,
}

/// Why no plan was made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("remove: no agent is called {0}")]
    UnknownAgent(String),
    #[error("add: near={0}: no agent and no site is known by this name")]
    UnknownNear(String),
    #[error("add: near={near}: {why}")]
    Unplaced { near: String, why: String },
    /// The agent to remove is not part of the computation.
    #[error("remove: {0} {1}; removing it changes nothing")]
    NoPart(String, &'static str),
    #[error("{0} is named twice")]
    Repeated(String),
    #[error("add: an agent is already called {0}: give the new one another name=")]
    Taken(String),
    #[error("{0} sites are located, but a plan can include at most {MOST_SITES}")]
    TooManySites(u64),
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// No plan can be computed for this strategy.
    #[error("strategy: {0}")]
    Strategy(CapacityError),
    #[error("the scheduler is stopping: try again")]
    Stopping,
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// The state from which the plan is computed.
struct WhatIfInput {
    located: LocatedEmbedding,
    sites: Sites,
    suspects: u64,
    agents: Vec<Agent>,
    left_out: Vec<(String, &'static str)>,
}

/// Computes plans one at a time, because a plan may use a gigabyte and all cores for seconds.
#[derive(Debug, Clone, Default)]
pub struct CapacityPlanner {
    /// Locked while a plan is computed.
    turn: Arc<Mutex<()>>,
}

impl CapacityPlanner {
    /// Computes a plan. The lock is held until the computation ends, even if the caller is gone by
    /// then.
    ///
    /// # Errors
    /// When a requested name is unknown or has no coordinates, when no site is located, or when the
    /// database fails.
    pub async fn plan(&self, pool: &PgPool, wanted: &WhatIfRequest) -> Result<Plan, PlanError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let split = SiteSplit::try_from(wanted.strategy).map_err(PlanError::Strategy)?;
        if wanted.suggest > 0 && split == SiteSplit::All {
            return Err(PlanError::Strategy(CapacityError::NothingToSuggest));
        }
        let mut tx = store::begin_snapshot(pool).await?;
        let input = WhatIfInput::read(&mut tx, wanted).await?;
        tx.commit().await.map_err(store::Error::from)?;

        let count = wanted.suggest;
        let worked_out = tokio::task::spawn_blocking(move || {
            let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
            let compared = capacity::compare(&input.sites, &input.agents, split, threads)?;
            let suggest = || capacity::suggest(&input.sites, &input.agents, split, count, SEED, threads);
            let suggested = (count > 0).then(suggest).transpose()?;
            Ok::<_, CapacityError>((input, compared, suggested, turn))
        });
        let (input, compared, suggested, _turn) = worked_out.await.map_err(|_| PlanError::Stopping)??;

        let picks = suggested.iter().flat_map(|suggested| &suggested.picks);
        let picks: Vec<SiteId> = picks.filter_map(|pick| input.sites.id(pick.site)).collect();
        let mut conn = pool.acquire().await.map_err(store::Error::from)?;
        let picked = picked(&mut conn, &picks).await?;
        let WhatIfInput { located, sites, suspects, agents, left_out } = input;
        let (known, usual, strategy) = (sites.known(), sites.usual(), wanted.strategy);
        let sites = sites.len();
        Ok(Plan { located, strategy, sites, suspects, known, usual, agents, compared, left_out, suggested, picked })
    }
}

impl WhatIfInput {
    async fn read(conn: &mut PgConnection, wanted: &WhatIfRequest) -> Result<Self, PlanError> {
        let located = capacity_and_map::located(conn).await?.ok_or(CapacityError::NoSites)?;
        if located.sites > MOST_SITES {
            return Err(PlanError::TooManySites(located.sites));
        }
        let enrolled = capacity_and_map::agents(conn, located.epoch).await?;
        let ids: Vec<_> = enrolled.iter().map(|agent| agent.agent).collect();
        let crawls = past_crawls_and_site_facts::crawls(conn, &ids).await?;
        let learned = |crawls: &[_]| Speed::default().learned(crawls);
        let mut agents = Vec::new();
        let mut left_out = Vec::new();
        for one in &enrolled {
            match no_part(one) {
                Some(why) => left_out.push((one.name.clone(), why)),
                None => agents.push(Agent {
                    name: one.name.clone(),
                    city: one.city.clone(),
                    carrier: one.carrier.clone(),
                    coordinate: one.coordinate.clone().unwrap_or_default(),
                    slots: one.slots,
                    speed: learned(crawls.get(&one.agent).map_or(&[][..], Vec::as_slice)),
                    change: AgentChange::Stays,
                }),
            }
        }
        remove(&mut agents, &left_out, &wanted.remove)?;
        let usual_speed = capacity::usual_speed(crawls.into_values());
        let mut added = Vec::new();
        for addition in &wanted.add {
            let name = free_name(addition, &enrolled, &added)?;
            let coordinate = near(conn, located, &enrolled, &agents, &addition.near).await?;
            let slots = addition.slots.unwrap_or_else(|| capacity::usual_slots(&agents));
            let (city, carrier) = (addition.city.clone(), addition.carrier.clone());
            let (speed, change) = (usual_speed, AgentChange::Comes);
            added.push(Agent { name, city, carrier, coordinate, slots, speed, change });
        }
        agents.append(&mut added);
        let mut sites = Sites::new(located.epoch, located.dimensions);
        let suspects = capacity_and_map::sites(conn, &mut sites).await?;
        Ok(Self { located, sites, suspects, agents, left_out })
    }
}

/// The reason why an agent is left out of the computation; `None` if it is not left out.
fn no_part(agent: &EnrolledAgent) -> Option<&'static str> {
    match &agent.coordinate {
        _ if agent.draining => Some(DRAINING),
        None => Some(NO_PLACE),
        Some(_) => None,
    }
}

/// Marks the agents that the plan removes.
fn remove(agents: &mut [Agent], left_out: &[(String, &'static str)], names: &[String]) -> Result<(), PlanError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(PlanError::Repeated(name.clone()));
        }
        if let Some((name, why)) = left_out.iter().find(|(one, _)| one == name) {
            return Err(PlanError::NoPart(name.clone(), why));
        }
        let agent = agents.iter_mut().find(|agent| agent.name == *name);
        agent.ok_or_else(|| PlanError::UnknownAgent(name.clone()))?.change = AgentChange::Leaves;
    }
    Ok(())
}

/// The name of an agent to add: the requested name, or an unused name formed from the city and the
/// carrier.
fn free_name(addition: &Addition, enrolled: &[EnrolledAgent], added: &[Agent]) -> Result<String, PlanError> {
    let taken = |name: &str| enrolled.iter().any(|agent| agent.name == name);
    let repeated = |name: &str| added.iter().any(|agent| agent.name == name);
    match &addition.name {
        Some(name) if taken(name) => Err(PlanError::Taken(name.clone())),
        Some(name) if repeated(name) => Err(PlanError::Repeated(name.clone())),
        Some(name) => Ok(name.clone()),
        None => {
            let base = naming::formed(&addition.city, &addition.carrier).unwrap_or_else(|_| "agent".to_owned());
            Ok(naming::first_free(&base, &mut 1, |name| taken(name) || repeated(name)))
        }
    }
}

/// The coordinates of a new agent that is placed beside the named agent or site.
async fn near(
    conn: &mut PgConnection,
    located: LocatedEmbedding,
    enrolled: &[EnrolledAgent],
    agents: &[Agent],
    near: &str,
) -> Result<Vec<f64>, PlanError> {
    let unplaced = |why: &str| PlanError::Unplaced { near: near.to_owned(), why: why.to_owned() };
    if let Some(agent) = enrolled.iter().find(|agent| agent.name == near) {
        return agent.coordinate.clone().ok_or_else(|| unplaced("the agent has no place in the embedding yet"));
    }
    let unknown = || PlanError::UnknownNear(near.to_owned());
    let name: SiteName = near.parse().map_err(|_| unknown())?;
    let site = sites::find(conn, &name).await?.ok_or_else(unknown)?;
    let ids: Vec<SiteId> = site.ids().into_iter().collect();
    if let Some(placement) = placements::sites(conn, &ids, located.epoch).await?.into_values().next() {
        return Ok(capacity::beside(&placement.coordinate, agents));
    }
    Err(match sites::placement(conn, &site).await? {
        None => unplaced("the site is not located: no landmark has measured it, or none could"),
        Some(other) => unplaced(&format!(
            "the site lies in embedding {} and not in {}: submit it again to have it located anew",
            other.epoch, located.epoch
        )),
    })
}

/// Reads the names and positions of the suggested sites.
async fn picked(conn: &mut PgConnection, picks: &[SiteId]) -> Result<Vec<SuggestedSite>, PlanError> {
    let names = capacity_and_map::names(conn, picks).await?;
    let mut positions: HashMap<_, _> = positions_and_verdicts::of_sites(conn, picks).await?;
    let one = |site: &SiteId| SuggestedSite {
        name: names.get(site).cloned().unwrap_or_default(),
        position: positions.remove(site),
    };
    Ok(picks.iter().map(one).collect())
}

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
