//! Chooses an agent for every located task.
//!
//! The choice itself is `strategy`, pure; this pass only gathers what it needs to know and records what it said. A
//! measured round trip beats a predicted one. Agents without an active session, or that drain, are no candidates.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use anyhow::Context;

use crate::gnp::{Place, Placement, Position, Predicted};
use crate::model::{AgentId, Rtt, SiteId, Strategy};
use crate::seed;
use crate::store::assignments::{self, Available, Waiting};
use crate::store::verdicts::Suspicion;
use crate::store::{agents, measurements, placements, quarantines, verdicts};
use crate::strategy::{self, Candidate, Choice};

use super::claims;
use super::duty::OnDuty;
use super::fleet::{PASSING, explain_nobody};
use super::refined::Current;

/// Tasks chosen for in one transaction: bounds how long their rows stay locked, to well under a second.
const TASKS_PER_PASS: i64 = 500;

/// The chooser.
#[derive(Debug)]
pub struct Assign {
    scheduler: OnDuty,
}

/// What is known of the sites of one pass.
struct Known {
    /// Per site on the map, what it predicts for each agent.
    predicted: HashMap<SiteId, HashMap<AgentId, Predicted>>,
    measured: HashMap<SiteId, Vec<(AgentId, Rtt)>>,
    /// Sites that probably stand in several places.
    suspicions: HashMap<SiteId, Suspicion>,
}

impl Assign {
    /// Chooses for this scheduler.
    pub fn new(scheduler: OnDuty) -> Self {
        Self { scheduler }
    }

    /// One pass: as many transactions as there are bounded batches waiting.
    ///
    /// # Errors
    /// When the database fails; what was not committed is chosen in the next pass.
    pub async fn run_once(&self) -> anyhow::Result<()> {
        self.withdraw().await?;
        // Before any row is locked: the first choice on a new map makes it, which takes a second.
        let map = self.scheduler.maps.current(&self.scheduler).await?;
        while self.choose_some(map.clone()).await? {}
        Ok(())
    }

    async fn withdraw(&self) -> anyhow::Result<()> {
        let mut tx = self.scheduler.begin().await?;
        let withdrawn =
            assignments::withdraw_from_unavailable(&mut tx).await.context("withdraw assignments of lost agents")?;
        tx.commit().await.context("commit withdrawn assignments")?;
        if withdrawn > 0 {
            tracing::info!(withdrawn, "tasks of agents that are gone or drain are chosen for anew");
        }
        Ok(())
    }

    /// Chooses for one bounded batch; `true` when more may wait.
    async fn choose_some(&self, map: Option<Arc<Current>>) -> anyhow::Result<bool> {
        let mut tx = self.scheduler.begin().await?;
        let mut agents = assignments::available(&mut tx).await.context("read available agents")?;
        let confirmed_within = self.scheduler.config.measure.site_max_age;
        let waiting =
            assignments::waiting(&mut tx, confirmed_within, TASKS_PER_PASS).await.context("read located tasks")?;
        if waiting.is_empty() {
            return Ok(false);
        }
        if agents.is_empty() {
            explain_nobody(&mut tx).await.context("explain waiting tasks")?;
            tx.commit().await.context("commit reasons")?;
            return Ok(false);
        }
        let known = Known::read(&mut tx, &waiting, &agents, map).await?;
        let alarm = quarantines::alarm(&mut tx).await.context("read the alarm")?;
        let mut chosen = BTreeSet::new();
        for task in &waiting {
            let candidates = known.candidates(task.site, &agents);
            let seed = draw_seed(task);
            let alarmed = alarm.as_ref().filter(|_| task.strategy.needs_distance());
            let followed = alarmed.map_or(task.strategy, |_| Strategy::Random);
            let spread = if alarmed.is_none() { known.spread(task, &candidates, seed) } else { None };
            let (spread, note) = spread.map_or((None, None), |(choice, note)| (Some(choice), Some(note)));
            let Some(choice) = spread.or_else(|| strategy::choose(followed, &candidates, seed)) else { continue };
            // What kept the site from being measured says more than that no distance is known.
            let unmeasured = task.reason.as_ref().filter(|reason| !PASSING.contains(&reason.as_str()));
            let fallback = alarmed.or(choice.fallback.as_ref().map(|generic| unmeasured.unwrap_or(generic)));
            assignments::insert(&mut tx, task.task, seed, &choice, fallback.map(String::as_str))
                .await
                .context("record an assignment")?;
            if let Some(note) = note {
                assignments::annotate(&mut tx, task.task, &note).await.context("note how the strategy was followed")?;
            }
            if let Some(agent) = agents.iter_mut().find(|agent| agent.agent == choice.agent) {
                agent.load = agent.load.saturating_add(1);
            }
            chosen.insert(choice.agent);
        }
        tx.commit().await.context("commit assignments")?;
        tracing::debug!(tasks = waiting.len(), agents = chosen.len(), "assigned tasks");
        self.scheduler.wakes.wake_agents(chosen);
        Ok(i64::try_from(waiting.len()).is_ok_and(|count| count == TASKS_PER_PASS))
    }
}

impl Known {
    async fn read(
        conn: &mut sqlx::PgConnection,
        waiting: &[Waiting],
        agents: &[Available],
        map: Option<Arc<Current>>,
    ) -> anyhow::Result<Self> {
        let sites: Vec<SiteId> = waiting.iter().map(|task| task.site).collect();
        let measured = measurements::of_sites(conn, &sites).await.context("read the sites' measurements")?;
        let suspicions = verdicts::suspicions(conn, &sites).await.context("read suspicions")?;
        let Some(map) = map else { return Ok(Self { predicted: HashMap::new(), measured, suspicions }) };
        let placed =
            placements::sites(conn, &sites, map.embedding.epoch()).await.context("read the sites' placements")?;
        // A site in several places may be next to everybody.
        let claimed: Vec<SiteId> = measured
            .iter()
            .filter(|(site, measured)| !suspicions.contains_key(site) && claims::are_among(&map, measured))
            .map(|(site, _)| *site)
            .collect();
        let positions = if claimed.is_empty() { BTreeMap::new() } else { positions(conn).await? };
        let agents: Vec<AgentId> = agents.iter().map(|available| available.agent).collect();
        // Half a millisecond a site: too long for a thread that serves others.
        let (predicted, measured) = tokio::task::spawn_blocking(move || {
            let mut measured = measured;
            for site in claimed {
                measured.entry(site).and_modify(|of_it| *of_it = claims::believed(&map, &positions, of_it));
            }
            let predict = |(site, placement)| {
                let measured = measured.get(&site).map_or(&[][..], Vec::as_slice);
                (site, predict(&map, placement, measured, &agents))
            };
            let predicted: HashMap<_, _> = placed.into_iter().map(predict).collect();
            (predicted, measured)
        })
        .await
        .context("predict distances")?;
        Ok(Self { predicted, measured, suspicions })
    }

    /// The choice for a site that probably stands in several places, and what to note; `None` where the strategy does not go
    /// by distance, or no distance is known.
    fn spread(&self, task: &Waiting, candidates: &[Candidate], seed: u64) -> Option<(Choice, String)> {
        let suspicion = self.suspicions.get(&task.site).filter(|_| task.strategy.needs_distance())?;
        let choice = strategy::choose_among_near(task.strategy, candidates, seed)?;
        let (confidence, near) = (suspicion.confidence, choice.candidates.len());
        let note = format!("in several places (confidence {confidence:.2}): the freest of {near} near agents");
        Some((choice, note))
    }

    fn candidates(&self, site: SiteId, agents: &[Available]) -> Vec<Candidate> {
        let measured = self.measured.get(&site).map_or(&[][..], Vec::as_slice);
        let predicted = self.predicted.get(&site);
        agents
            .iter()
            .map(|available| {
                let predicted = predicted.and_then(|predicted| predicted.get(&available.agent));
                Candidate {
                    agent: available.agent,
                    predicted: predicted.map(|predicted| predicted.rtt),
                    expected: predicted.and_then(|predicted| predicted.expected),
                    measured: measured.iter().find(|(prober, _)| *prober == available.agent).map(|(_, rtt)| *rtt),
                    load: available.load,
                    capacity: available.capacity,
                }
            })
            .collect()
    }
}

/// Where agents are, as far as they say so.
async fn positions(conn: &mut sqlx::PgConnection) -> anyhow::Result<BTreeMap<AgentId, Position>> {
    let fleet = agents::list(conn).await.context("read the agents")?;
    Ok(fleet.into_iter().filter_map(|agent| Some((agent.id, agent.position?))).collect())
}

/// What the map says of one placed site: the refined one where there is one, else its point.
fn predict(
    map: &Current,
    placement: Placement,
    measured: &[(AgentId, Rtt)],
    agents: &[AgentId],
) -> HashMap<AgentId, Predicted> {
    let cloud = map.refined.as_ref().and_then(|refined| refined.locate(measured).ok());
    let place = cloud.map_or_else(|| Place::Point(&map.embedding, placement), Place::Cloud);
    agents.iter().filter_map(|&agent| Some((agent, place.predict(agent)?))).collect()
}

/// The seed of a task's draw: the same for the same task and number of former choices, so that a choice can be
/// replayed, and unrelated between neighbouring tasks.
fn draw_seed(task: &Waiting) -> u64 {
    seed::spread(task.task.get().cast_unsigned() ^ task.former.cast_unsigned().rotate_left(48))
}
