//! `landfall plan`: validates what it asks, reads the state, resolves the requested names, computes
//! the plan with [`capacity`], and makes the answer.
//!
//! The data for the computation are read in one snapshot, and nothing is written. The computation
//! uses all cores, on its own threads.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use landfall_proto::v1;
use sqlx::PgConnection;
use tokio::sync::Mutex;

use super::convert::{InvalidField, agent_name, duration, globe_position, line, whole};
use crate::capacity::{
    self, Agent, AgentChange, CapacityError, Comparison, FleetPrediction, Load, MOST_SITES, SiteSplit, Sites,
    Suggestion,
};
use crate::model::site_name::SiteName;
use crate::model::{SiteId, Strategy, naming};
use crate::store::assignments::past_crawls_and_site_facts;
use crate::store::embeddings::placements;
use crate::store::reports::capacity_and_map::{self, EnrolledAgent, LocatedEmbedding};
use crate::store::sites;
use crate::store::sites::positions_and_verdicts;
use crate::store::{self, Db};
use crate::strategy::Speed;

/// A fixed seed, so that the same map always gives the same suggestions.
const SEED: u64 = 1;
/// The reason why an agent without coordinates is left out.
const NO_PLACE: &str = "has no place in this embedding: it had too few measurements when the embedding was fitted";
const DRAINING: &str = "takes no new work because it is draining";

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
    pub async fn plan(
        &self,
        db: &Db,
        request: &v1::PlanRequest,
        strategy: Strategy,
    ) -> Result<v1::PlanResponse, PlanError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let split = SiteSplit::try_from(strategy).map_err(PlanError::Strategy)?;
        if request.suggest > 0 && split == SiteSplit::All {
            return Err(PlanError::Strategy(CapacityError::NothingToSuggest));
        }
        let mut tx = db.snapshot("read what a plan needs").await?;
        let input = WhatIfInput::read(&mut tx, request).await?;
        drop(tx);

        let count = usize::try_from(request.suggest).unwrap_or(usize::MAX);
        let worked_out = tokio::task::spawn_blocking(move || {
            let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
            let compared = capacity::compare(&input.sites, &input.agents, split, threads)?;
            let suggest = || capacity::suggest(&input.sites, &input.agents, split, count, SEED, threads);
            let suggested = (count > 0).then(suggest).transpose()?;
            Ok::<_, CapacityError>((input, compared, suggested, turn))
        });
        let (input, compared, suggested, _turn) = worked_out.await.map_err(|_| PlanError::Stopping)??;

        let WhatIfInput { located, sites, suspects, agents, left_out } = input;
        let picks = suggested.as_ref().map_or(&[][..], |suggested| &suggested.picks);
        let mut conn = db.read("read suggested places").await?;
        let suggestions = suggestions(&mut conn, &sites, picks).await?;
        let (usual_pages, usual_bytes) = sites.usual();
        let Comparison { before, after } = compared;
        let loads = before.loads.iter().zip(&after.loads);
        let planned = agents.iter().zip(loads).map(|(agent, (before, after))| planned(agent, *before, *after));
        let left_out = left_out.into_iter().map(|(name, why)| v1::LeftOutAgent { name, why: why.to_owned() });
        Ok(v1::PlanResponse {
            epoch: located.epoch.get(),
            strategy: strategy.to_string(),
            sites: whole(sites.len()),
            sites_elsewhere: located.elsewhere,
            sites_in_several_places: suspects,
            sites_of_known_size: whole(sites.known()),
            usual_pages,
            usual_bytes,
            before: Some(outlook(&before, &agents)),
            after: Some(outlook(&after, &agents)),
            agents: planned.collect(),
            left_out: left_out.collect(),
            suggestions,
            sampled_sites: suggested.as_ref().map_or(0, |suggested| whole(suggested.sample)),
            tried_places: suggested.as_ref().map_or(0, |suggested| whole(suggested.candidates)),
        })
    }
}

impl WhatIfInput {
    async fn read(conn: &mut PgConnection, request: &v1::PlanRequest) -> Result<Self, PlanError> {
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
        remove(&mut agents, &left_out, &request.remove)?;
        let usual_speed = capacity::usual_speed(crawls.into_values());
        let mut added = Vec::new();
        for addition in &request.add {
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
fn free_name(addition: &v1::PlannedAddition, enrolled: &[EnrolledAgent], added: &[Agent]) -> Result<String, PlanError> {
    let taken = |name: &str| enrolled.iter().any(|agent| agent.name == name);
    let repeated = |name: &str| added.iter().any(|agent| agent.name == name);
    match addition.name.as_str() {
        "" => {
            let base = naming::formed(&addition.city, &addition.carrier).unwrap_or_else(|_| "agent".to_owned());
            Ok(naming::first_free(&base, &mut 1, |name| taken(name) || repeated(name)))
        }
        name if taken(name) => Err(PlanError::Taken(name.to_owned())),
        name if repeated(name) => Err(PlanError::Repeated(name.to_owned())),
        name => Ok(name.to_owned()),
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

/// The message for each suggestion, with the name and the position of the suggested site.
async fn suggestions(
    conn: &mut PgConnection,
    sites: &Sites,
    picks: &[Suggestion],
) -> Result<Vec<v1::PlannedSuggestion>, PlanError> {
    let ids: Vec<SiteId> = picks.iter().filter_map(|pick| sites.id(pick.site)).collect();
    let names = capacity_and_map::names(conn, &ids).await?;
    let positions = positions_and_verdicts::of_sites(conn, &ids).await?;
    let suggestion = |(pick, site): (&Suggestion, &SiteId)| v1::PlannedSuggestion {
        near: names.get(site).cloned().unwrap_or_default(),
        position: positions.get(site).copied().map(globe_position),
        gain: Some(millis(pick.gain_ms)),
        mean: Some(millis(pick.mean_ms)),
        share: pick.share,
    };
    Ok(picks.iter().zip(&ids).map(suggestion).collect())
}

fn outlook(outlook: &FleetPrediction, agents: &[Agent]) -> v1::PlannedOutlook {
    let busy = agents.iter().zip(&outlook.loads).filter_map(|(agent, load)| Some((load.as_ref()?.busy, agent)));
    let longest = busy.max_by_key(|(busy, _)| *busy).map(|(_, agent)| agent.name.clone());
    v1::PlannedOutlook {
        mean: Some(millis(outlook.mean_ms)),
        makespan: Some(duration(outlook.makespan)),
        longest: longest.unwrap_or_default(),
    }
}

fn planned(agent: &Agent, before: Option<Load>, after: Option<Load>) -> v1::PlannedAgent {
    let change = match agent.change {
        AgentChange::Stays => "stays",
        AgentChange::Comes => "added",
        AgentChange::Leaves => "removed",
    };
    let load = |load: Load| v1::PlannedLoad {
        sites: load.sites,
        share: load.share,
        work: Some(duration(load.work)),
        busy: Some(duration(load.busy)),
    };
    v1::PlannedAgent {
        name: agent.name.clone(),
        city: agent.city.clone(),
        carrier: agent.carrier.clone(),
        slots: agent.slots,
        change: change.to_owned(),
        before: before.map(load),
        after: after.map(load),
    }
}

fn millis(millis: f64) -> prost_types::Duration {
    duration(Duration::try_from_secs_f64(millis / 1e3).unwrap_or_default())
}

/// Maximum number of agents to add in a plan.
const MOST_ADDED: usize = 100;
/// Maximum number of agents to remove in a plan. No fleet has more agents.
const MOST_REMOVED: usize = 100_000;
/// Maximum number of places to suggest for new agents.
const MOST_SUGGESTED: u32 = 20;
/// The valid numbers of slots for an agent. The database's schema has the same bounds.
const SLOTS: RangeInclusive<u32> = 1..=10_000;

/// Checks the fields of a request and trims its texts. Also returns the parsed strategy.
pub(super) fn checked(request: v1::PlanRequest) -> Result<(v1::PlanRequest, Strategy), InvalidField> {
    let v1::PlanRequest { add, remove, strategy, suggest } = &request;
    if add.len() > MOST_ADDED {
        return Err(InvalidField::new("add", format!("{} agents, but at most {MOST_ADDED} can be added", add.len())));
    }
    if remove.len() > MOST_REMOVED {
        let problem = format!("{} agents, but at most {MOST_REMOVED} can be removed", remove.len());
        return Err(InvalidField::new("remove", problem));
    }
    if *suggest > MOST_SUGGESTED {
        let problem = format!("{suggest} places, but at most {MOST_SUGGESTED} can be suggested");
        return Err(InvalidField::new("suggest", problem));
    }
    let strategy = match strategy.as_str() {
        "" => Strategy::default(),
        given => given.parse().map_err(InvalidField::of("strategy"))?,
    };
    let add = add.iter().map(checked_addition).collect::<Result<_, _>>()?;
    Ok((v1::PlanRequest { add, ..request }, strategy))
}

fn checked_addition(addition: &v1::PlannedAddition) -> Result<v1::PlannedAddition, InvalidField> {
    let v1::PlannedAddition { name, city, carrier, near, slots } = addition;
    if let Some(slots) = slots.filter(|slots| !SLOTS.contains(slots)) {
        let problem = format!("must be {} to {}, not {slots}", SLOTS.start(), SLOTS.end());
        return Err(InvalidField::new("slots", problem));
    }
    Ok(v1::PlannedAddition {
        name: if name.is_empty() { String::new() } else { agent_name("name", name)? },
        city: line("city", city)?,
        carrier: line("carrier", carrier)?,
        near: line("near", near)?,
        slots: *slots,
    })
}
