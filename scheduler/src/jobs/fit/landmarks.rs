//! Decides which landmarks can be fitted, and replaces lost landmarks.
//!
//! The jobs `fit` and `locate` both use [`MeshState`], so that they agree on whether a map is valid
//! or expected soon.
//!
//! If an elected landmark stays disconnected, an election replaces it; the other landmarks stay.
//! One landmark is replaced per pass, and the new landmark is used only from the next pass on. With
//! one replacement per pass, not all landmarks are replaced at once if half of a fleet is
//! disconnected for a while. After a replacement the map is fitted again in the background; until
//! then the old map is used. If the lost landmark returns, it is an ordinary agent. A landmark set
//! by hand is never replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use sqlx::PgConnection;

use crate::gnp::{self, ELECTION_SEED, Embedding, FEWEST_LANDMARKS, Mesh, Nominee};
use crate::jobs::leadership::Leader;
use crate::jobs::measure::Fleet;
use crate::model::AgentId;
use crate::store::agents::{self, Agent};
use crate::store::embeddings::landmarks::LostLandmark;
use crate::store::embeddings::{self, landmarks};
use crate::store::measurements::{self, MeshMeasurement, quarantines_and_contradictions};
use crate::store::settings;
use crate::store::{Error, Tx};

/// A landmark is fitted only if its round trips with at least this many other landmarks are known.
const FEWEST_PARTNERS: usize = 2;

/// The state of the mesh and of the landmarks in it.
#[derive(Debug)]
pub(in crate::jobs) struct MeshState {
    /// The landmarks with enough round trips to be fitted, in the order in which they were chosen.
    pub(in crate::jobs) landmarks: Vec<AgentId>,
    /// Whether a connected landmark has not tried to measure another landmark's beacon yet.
    pub(in crate::jobs) landmark_gaps: bool,
    /// Whether a connected agent has not tried to measure a landmark's beacon yet.
    pub(in crate::jobs) agent_gaps: bool,
    /// The time at which the mesh was read.
    pub(in crate::jobs) as_of: DateTime<Utc>,
    /// Number of landmarks that have been measured or can still be measured.
    reachable: usize,
    /// Whether landmarks were chosen. If none were chosen, every suitable connected agent is a
    /// landmark.
    chosen: bool,
    /// Whether there is an alarm. During an alarm the map is not trusted, and no fit is made.
    alarmed: bool,
}

impl MeshState {
    pub(in crate::jobs) async fn survey(conn: &mut PgConnection, fleet: &Fleet) -> Result<Self, Error> {
        let as_of = embeddings::clock(conn).await?;
        let candidates = fleet.candidates();
        // Reads only the round trips between these agents, because the whole mesh has a row for
        // each pair of agents.
        let landmarks = fittable(&candidates, &measurements::mesh_among(conn, &candidates).await?);
        let beacons: Vec<AgentId> = fleet
            .connected
            .iter()
            .filter(|connected| connected.has_beacon && candidates.contains(&connected.agent))
            .map(|connected| connected.agent)
            .collect();
        let connected: Vec<AgentId> = fleet.connected.iter().map(|connected| connected.agent).collect();
        let connected_candidates: Vec<AgentId> =
            connected.iter().copied().filter(|agent| candidates.contains(agent)).collect();
        let landmark_gaps = measurements::has_gap(conn, &connected_candidates, &beacons).await?;
        let agent_gaps = measurements::has_gap(conn, &connected, &beacons).await?;
        let reachable = candidates.iter().filter(|agent| landmarks.contains(agent) || beacons.contains(agent)).count();
        let alarmed = quarantines_and_contradictions::alarm(conn).await?.is_some();
        let chosen = !fleet.landmarks.is_empty();
        Ok(Self { landmarks, landmark_gaps, agent_gaps, as_of, reachable, chosen, alarmed })
    }

    /// Whether an embedding that was fitted to the landmarks `fitted` is still valid. If landmarks
    /// were chosen, they must be exactly those in `fitted`. In a small fleet, every current
    /// landmark must be in `fitted`, which may also contain agents that have since left.
    pub(in crate::jobs) fn holds(&self, fitted: &[AgentId]) -> bool {
        self.landmarks.iter().all(|agent| fitted.contains(agent))
            && (!self.chosen || fitted.len() == self.landmarks.len())
    }

    /// Whether a site should wait for an embedding that is expected soon. The site need not wait if
    /// the current embedding places all landmarks. This embedding may have been fitted to other
    /// landmarks, for example before a lost landmark was replaced.
    pub(in crate::jobs) fn awaits_fit(&self, present: Option<&Embedding>) -> bool {
        if self.alarmed {
            return false;
        }
        if self.landmark_gaps {
            return self.reachable >= FEWEST_LANDMARKS;
        }
        let serves = |map: &Embedding| self.landmarks.iter().all(|landmark| map.placement(*landmark).is_some());
        self.landmarks.len() >= FEWEST_LANDMARKS && !present.is_some_and(serves)
    }
}

/// Returns the agents in `candidates` that can be fitted as landmarks. Each of them has round trips
/// in the mesh, in either direction, with at least [`FEWEST_PARTNERS`] other agents in
/// `candidates`.
fn fittable(candidates: &[AgentId], mesh: &[MeshMeasurement]) -> Vec<AgentId> {
    let mut partners: BTreeMap<AgentId, BTreeSet<AgentId>> = BTreeMap::new();
    for pair in mesh {
        if candidates.contains(&pair.prober) && candidates.contains(&pair.target) {
            partners.entry(pair.prober).or_default().insert(pair.target);
            partners.entry(pair.target).or_default().insert(pair.prober);
        }
    }
    let enough = |agent: &AgentId| partners.get(agent).is_some_and(|known| known.len() >= FEWEST_PARTNERS);
    candidates.iter().copied().filter(enough).collect()
}

pub async fn run_once(scheduler: &Leader) -> anyhow::Result<()> {
    let replaced = replace_lost(scheduler, scheduler.config.landmarks.replace_after).await?;
    let Some(replaced) = replaced else { return Ok(()) };
    let (lost, away_secs) = (replaced.lost, replaced.away_for.as_secs());
    let Some(elected) = replaced.elected else {
        tracing::debug!(landmark = lost, away_secs, "a landmark is lost and no agent can replace it");
        return Ok(());
    };
    tracing::warn!(landmark = lost, away_secs, elected, "a lost landmark was replaced");
    let wakes = &scheduler.wakes;
    for wake in [&wakes.landmarks, &wakes.fit, &wakes.measure, &wakes.locate] {
        wake.notify_one();
    }
    Ok(())
}

/// The replacement of a lost landmark.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Replacement {
    lost: String,
    /// Time since the lost landmark disconnected.
    away_for: Duration,
    /// The agent that replaces the landmark; `None` if no agent can replace it.
    elected: Option<String>,
}

/// What the election of a replacement depends on.
struct Vacancy {
    lost: LostLandmark,
    /// All landmarks, including the lost one.
    present: Vec<AgentId>,
    agents: Vec<Agent>,
    mesh: Mesh,
}

impl Vacancy {
    async fn read(tx: &mut Tx<'_>, after: Duration) -> anyhow::Result<Option<Self>> {
        let Some(lost) = landmarks::longest_absent(tx, after).await? else { return Ok(None) };
        let agents = agents::list(tx).await?;
        let present = present(tx).await?;
        let mesh = measurements::mesh(tx).await?.into_iter().collect();
        Ok(Some(Self { lost, present, agents, mesh }))
    }

    /// Elects the replacement, and says why; `None` if no agent can replace the landmark.
    fn elect(&self) -> Option<(AgentId, String)> {
        let Self { lost, present, agents, mesh } = self;
        let kept: Vec<AgentId> = present.iter().copied().filter(|landmark| *landmark != lost.agent).collect();
        let can = |agent: &&Agent| agent.connected && agent.beacon_url.is_some() && !present.contains(&agent.id);
        let candidates: Vec<AgentId> = agents.iter().filter(can).map(|agent| agent.id).collect();
        let fleet = agents.iter().filter(|agent| kept.contains(&agent.id) || candidates.contains(&agent.id));
        let fleet: Vec<Nominee> = fleet.cloned().map(Nominee::from).collect();
        let elected = gnp::replace_landmark(mesh, &fleet, &kept, &candidates, ELECTION_SEED)?;
        let minutes = lost.away_for.as_secs() / 60;
        Some((elected.agent, format!("replaces {}, disconnected for {minutes} min; {}", lost.name, elected.reason)))
    }
}

async fn present(tx: &mut Tx<'_>) -> Result<Vec<AgentId>, Error> {
    Ok(landmarks::list(tx).await?.into_iter().map(|landmark| landmark.agent).collect())
}

/// Replaces an elected landmark with a newly elected agent if the landmark has been disconnected
/// for at least `after`. If several landmarks are lost, replaces only the one that has been
/// disconnected longest. Returns `None` if no landmark is lost, or if the landmarks changed during
/// the election.
async fn replace_lost(scheduler: &Leader, after: Duration) -> anyhow::Result<Option<Replacement>> {
    let read = scheduler.tx("look for lost landmarks", |tx| Vacancy::read(tx, after).boxed());
    let Some(vacancy) = read.await? else { return Ok(None) };
    let elect = move || {
        let elected = vacancy.elect();
        (vacancy, elected)
    };
    let (vacancy, elected) = scheduler.compute(elect).await?;
    let Vacancy { lost, present: before, agents, .. } = &vacancy;
    if let Some((agent, reason)) = &elected {
        let replace = scheduler.tx("replace a lost landmark", |tx| {
            async move {
                let locked = settings::lock(tx).await?;
                let still = landmarks::longest_absent(tx, after).await?.is_some_and(|still| still.agent == lost.agent);
                if !still || present(tx).await? != *before {
                    return Ok(false);
                }
                Ok(landmarks::replace_lost(tx, &locked, lost.agent, *agent, reason).await?)
            }
            .boxed()
        });
        if !replace.await? {
            return Ok(None);
        }
    }
    let name = |agent: AgentId| agents.iter().find(|known| known.id == agent).map(|known| known.name.clone());
    let elected = elected.and_then(|(agent, _)| name(agent));
    Ok(Some(Replacement { lost: lost.name.clone(), away_for: lost.away_for, elected }))
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use crate::jobs::fixtures::Trial;
    use crate::model::AgentId;
    use crate::store::embeddings::landmarks;
    use crate::store::fixtures;

    async fn landmarks_now(trial: &Trial) -> Vec<landmarks::Landmark> {
        landmarks::list(&mut *trial.conn().await).await.expect("list")
    }

    /// Twelve agents, four of them elected as landmarks, and a map.
    async fn elected(pool: PgPool) -> Trial {
        let trial = Trial::new(pool, 12).await;
        trial.mesh(&trial.agents).await;
        let chosen = [1, 4, 7, 10].map(|place| (trial.agents[place].0, "elected".to_owned()));
        fixtures::set_landmarks(&mut *trial.conn().await, &chosen, landmarks::ChosenBy::Election).await;
        trial.fit().await;
        trial
    }

    /// Stores that an agent's session ended `minutes` ago. Also stores that the landmarks were
    /// chosen and the terms began a day ago, because absence is counted only from these times
    /// onwards.
    async fn leave(trial: &Trial, agent: AgentId, minutes: i32) {
        let left = "with at as (select now() - make_interval(mins => $2) as left)
                    update sessions set state = 'expired', expires_at = at.left, renewed_at = at.left from at where agent_id = $1";
        sqlx::query(left)
            .bind(agent.get())
            .bind(minutes)
            .execute(trial.scheduler.db.pool())
            .await
            .expect("end a session");
        trial.execute("update landmarks set chosen_at = now() - interval '1 day'").await;
        trial.execute("update terms set taken_at = now() - interval '1 day'").await;
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_fleet_that_was_stopped_with_its_scheduler_keeps_its_landmarks_when_both_are_back(pool: PgPool) {
        let trial = elected(pool).await;
        let before = landmarks_now(&trial).await;
        for landmark in &before {
            leave(&trial, landmark.agent, 60).await;
        }
        trial.execute("update terms set taken_at = now() - interval '1 minute'").await;
        trial.replace_landmarks().await;
        let before: Vec<AgentId> = before.iter().map(|one| one.agent).collect();
        let now: Vec<AgentId> = landmarks_now(&trial).await.iter().map(|one| one.agent).collect();
        assert_eq!(now, before, "the scheduler is back for a minute");
        trial.execute("update terms set taken_at = now() - interval '11 minutes'").await;
        trial.replace_landmarks().await;
        let after = landmarks_now(&trial).await;
        assert_eq!(after.iter().filter(|one| !before.contains(&one.agent)).count(), 1, "and these stay away");
        assert!(after.iter().any(|one| one.reason.contains("disconnected for 60 min")), "{after:?}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_lost_landmark_is_replaced_once_and_tasks_in_flight_go_on(pool: PgPool) {
        let trial = elected(pool).await;
        let before = landmarks_now(&trial).await;
        let lost = before[1].clone();
        let epoch = trial.map().await.expect("a map").epoch();
        let batch = trial.batch("b", "gnp-top3").await;
        let assigned = trial.assigned(batch, "assigned.cn", 0).await;
        let (measuring, measured) = trial.task("measuring.cn").await;
        trial.measure().await;

        leave(&trial, lost.agent, 9).await;
        trial.replace_landmarks().await;
        assert_eq!(landmarks_now(&trial).await[1].agent, lost.agent, "not away for long enough");
        leave(&trial, lost.agent, 11).await;
        tokio::join!(trial.replace_landmarks(), trial.replace_landmarks(), trial.replace_landmarks());
        trial.replace_landmarks().await;
        let after = landmarks_now(&trial).await;
        assert_eq!(after.len(), 4);
        assert!(after.iter().all(|landmark| landmark.connected && landmark.by == landmarks::ChosenBy::Election));
        for place in [0, 2, 3] {
            assert_eq!(after[place].agent, before[place].agent, "the others stay");
        }
        let said = format!("replaces {}, disconnected for 11 min; ", lost.name);
        assert!(after[1].reason.starts_with(&said), "{}", after[1].reason);

        // The old map is still used, so a site that all landmarks have measured does not wait for
        // the new map.
        let millis: Vec<(AgentId, Option<u64>)> = after.iter().map(|landmark| (landmark.agent, Some(30))).collect();
        trial.measured(measured, &millis).await;
        trial.locate().await;
        assert_eq!(trial.state(measuring).await, ("located".into(), None));
        assert_eq!(trial.state(assigned).await.0, "assigned");

        trial.fit().await;
        let map = trial.map().await.expect("a map");
        assert!(map.epoch() > epoch && map.landmarks().contains(&after[1].agent));

        trial.session(lost.agent).await;
        trial.replace_landmarks().await;
        assert_eq!(landmarks_now(&trial).await, after, "who returns is an ordinary agent");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn landmarks_set_by_hand_stay_however_long_they_are_away(pool: PgPool) {
        let trial = elected(pool).await;
        trial.set_landmarks(&trial.agents[..3]).await;
        leave(&trial, trial.agents[0].0, 600).await;
        trial.replace_landmarks().await;
        let landmarks_now = landmarks_now(&trial).await;
        assert_eq!(landmarks_now[0].agent, trial.agents[0].0);
        assert!(landmarks_now[0].away_for.is_some_and(|away| away.as_secs() >= 36_000), "{landmarks_now:?}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn with_nobody_to_take_its_place_a_lost_landmark_stays_one(pool: PgPool) {
        let trial = elected(pool).await;
        let lost = landmarks_now(&trial).await[0].agent;
        leave(&trial, lost, 60).await;
        trial.execute("update agents set beacon_url = null where id not in (select agent_id from landmarks)").await;
        trial.replace_landmarks().await;
        assert_eq!(landmarks_now(&trial).await[0].agent, lost);
    }
}
