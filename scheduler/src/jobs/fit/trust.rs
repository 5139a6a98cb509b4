//! Trust: judges every agent by its reports, and acts on the results.
//!
//! A review runs before every fit and, between fits, periodically to judge reports about sites. A
//! review opens and ends quarantines and alarms. Code that reads the mesh, the fleet or
//! measurements of sites must itself omit quarantined agents.

use std::collections::BTreeMap;

use futures_util::FutureExt as _;

use crate::gnp::Mesh;
use crate::gnp::trust::{CONSISTENT, PROBATION_AGE, PROBATION_SITES, is_consistent};
use crate::gnp::trust::{FEWEST_SITES, FleetTrust, Trust, TrustEvidence, judge};
use crate::model::geo::{Position, least_round_trip};
use crate::model::{AgentId, Rtt};
use crate::store::Tx;
use crate::store::agents::{self, AgentPlace};
use crate::store::embeddings::landmarks;
use crate::store::measurements::{self, orders, quarantines_and_contradictions};

use crate::jobs::leadership::Leader;
use crate::jobs::measure::order_lifetime;

/// Maximum number of sites that are considered when agents are judged.
const SITES: i64 = 40;
/// Minimum number of agents for a judgement. With fewer agents, the honest agents could not outvote
/// a lying agent.
const FEWEST_AGENTS: usize = 4;

/// The result of a review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::jobs) struct Review {
    /// Whether a quarantine began or ended.
    pub(in crate::jobs) changed: bool,
    /// Why the map cannot be trusted; `None` if it can be trusted.
    pub(in crate::jobs) alarm: Option<String>,
}

pub async fn run_once(scheduler: &Leader) -> anyhow::Result<()> {
    review(scheduler).await?;
    ask_again(scheduler).await
}

/// If agents were quarantined because of their reports about sites, orders these agents to measure
/// some sites again. The results are used only to judge these agents.
async fn ask_again(scheduler: &Leader) -> anyhow::Result<()> {
    let config = &scheduler.config.measure;
    let lifetime = order_lifetime(config.site_samples, config.site_interval, config.sample_timeout);
    let ask = scheduler.tx("ask agents again", |tx| {
        async move {
            let sites = quarantines_and_contradictions::judged_sites(tx, SITES).await?;
            let due = quarantines_and_contradictions::on_probation(tx, &sites, PROBATION_SITES, PROBATION_AGE).await?;
            Ok(orders::order_sites(tx, &due, lifetime).await?)
        }
        .boxed()
    });
    let asked = ask.await?;
    scheduler.wakes.wake_agents(asked);
    Ok(())
}

/// Judges every agent by the stored measurements, and stores the results.
pub(in crate::jobs) async fn review(scheduler: &Leader) -> anyhow::Result<Review> {
    let read = scheduler.tx("read what agents reported", |tx| {
        async move {
            let mesh: Mesh = measurements::mesh_of_all(tx).await?.into_iter().collect();
            let judged = quarantines_and_contradictions::judged_sites(tx, SITES).await?;
            let sites = quarantines_and_contradictions::sites_of_all(tx, &judged, FEWEST_SITES).await?;
            let mut chosen: Vec<AgentId> = landmarks::list(tx).await?.into_iter().map(|l| l.agent).collect();
            if chosen.is_empty() {
                // In a small fleet every agent is a landmark.
                chosen = landmarks::connected(tx).await?.iter().map(|connected| connected.agent).collect();
            }
            Ok((mesh, sites, chosen, agents::places(tx).await?))
        }
        .boxed()
    });
    let (mesh, sites, mut chosen, places) = read.await?;
    let known = mesh.agents();
    chosen.retain(|landmark| known.contains(landmark));
    let judgement = if known.len() < FEWEST_AGENTS {
        None
    } else {
        let judge = move || {
            let least = least(&places);
            judge(&TrustEvidence { mesh: &mesh, landmarks: &chosen, sites: &sites, least: &least })
        };
        Some(scheduler.compute(judge).await?)
    };
    store_verdicts(scheduler, judgement.as_ref()).await
}

/// The shortest physically possible round trip between any two agents whose positions are known.
fn least(agents: &BTreeMap<AgentId, AgentPlace>) -> BTreeMap<(AgentId, AgentId), Rtt> {
    let placed: Vec<(AgentId, Position)> =
        agents.iter().filter_map(|(&agent, place)| Some((agent, place.position?))).collect();
    let mut least = BTreeMap::new();
    for (i, &(a, here)) in placed.iter().enumerate() {
        for &(b, there) in &placed[..i] {
            // Two agents at the same position have no entry, because no round trip between them is
            // impossibly short.
            if let Ok(rtt) = Rtt::try_new(least_round_trip(here, there)) {
                least.insert((a, b), rtt);
            }
        }
    }
    least
}

async fn store_verdicts(scheduler: &Leader, judgement: Option<&FleetTrust>) -> anyhow::Result<Review> {
    let Some(judgement) = judgement else {
        let read = scheduler
            .tx("read the alarm", |tx| async move { Ok(quarantines_and_contradictions::alarm(tx).await?) }.boxed());
        return Ok(Review { changed: false, alarm: read.await? });
    };
    let alarm = judgement.alarm().map(|alarm| alarm.to_string());
    let raised = alarm.as_deref();
    let verdicts = scheduler.tx("store verdicts", |tx| Verdicts::store(tx, judgement, raised).boxed()).await?;
    verdicts.log(raised);
    let changed = !verdicts.held.is_empty() || !verdicts.released.is_empty();
    if changed {
        scheduler.wakes.fit.notify_one();
        scheduler.wakes.measure.notify_one();
        scheduler.wakes.locate.notify_one();
    }
    Ok(Review { changed, alarm })
}

/// What a review changed.
#[derive(Debug, Default)]
struct Verdicts {
    /// The names of the agents whose quarantine began, and why.
    held: Vec<(String, String)>,
    /// The names of the agents whose quarantine ended.
    released: Vec<String>,
    /// Whether an alarm began or ended.
    alarm_changed: bool,
}

impl Verdicts {
    async fn store(tx: &mut Tx<'_>, judgement: &FleetTrust, alarm: Option<&str>) -> anyhow::Result<Self> {
        let mut verdicts = Self::default();
        let mut held_anew = BTreeMap::new();
        for (&agent, finding) in judgement.findings() {
            if finding.trust == Trust::Quarantined
                && quarantines_and_contradictions::hold(tx, agent, finding.kind, &finding.reason).await?
            {
                held_anew.insert(agent, finding.reason.clone());
            }
        }
        for held in quarantines_and_contradictions::open(tx).await? {
            let consistent = is_consistent(judgement, held.agent, held.evidence)
                && quarantines_and_contradictions::found_consistent(tx, held.agent, CONSISTENT).await?;
            if consistent {
                verdicts.released.push(held.name.clone());
            }
            if let Some(reason) = held_anew.remove(&held.agent) {
                verdicts.held.push((held.name, reason));
            }
        }
        verdicts.alarm_changed = match alarm {
            Some(reason) => quarantines_and_contradictions::raise(tx, reason).await?,
            None => quarantines_and_contradictions::end_alarm(tx).await?,
        };
        Ok(verdicts)
    }

    fn log(&self, alarm: Option<&str>) {
        for (name, reason) in &self.held {
            tracing::warn!(agent.name = name, reason, "an agent is quarantined: its measurements are not used");
        }
        for name in &self.released {
            tracing::warn!(agent.name = name, "an agent left quarantine: its measurements are consistent again");
        }
        match alarm {
            _ if !self.alarm_changed => {}
            Some(reason) => tracing::warn!(
                reason,
                "the map is not trusted: the last good embedding stays and agents are chosen at random"
            ),
            None => tracing::warn!("the map is trusted again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::jobs::fixtures::{Agent, Trial, took};
    use crate::store::fixtures;
    use crate::store::measurements::orders::OrderTarget;

    /// Landmarks on a line with 10 ms between neighbours.
    async fn landmarks(pool: PgPool, count: usize) -> Trial {
        let trial = Trial::new(pool, count).await;
        trial.set_landmarks(&trial.agents).await;
        trial.mesh(&trial.agents).await;
        trial
    }

    async fn fit(trial: &Trial) {
        for _ in 0..2 {
            trial.fit().await;
        }
    }

    /// Multiplies these agents' measurements of the other agents by `factor`.
    async fn lie(trial: &Trial, liars: &[Agent], factor: i64) {
        let lie =
            "update mesh_measurements set rtt_us = rtt_us * $2, measured_at = clock_timestamp() where prober_id = $1";
        for (liar, _) in liars {
            let lie = sqlx::query(lie).bind(liar.get()).bind(factor);
            lie.execute(trial.scheduler.db.pool()).await.expect("lie");
        }
    }

    async fn quarantined(trial: &Trial) -> Vec<(AgentId, String)> {
        let open = quarantines_and_contradictions::open(&mut *trial.conn().await).await.expect("read");
        open.into_iter().map(|held| (held.agent, held.reason)).collect()
    }

    /// Lets the agents measure `a.cn` as ordered until its task is assigned. Returns the task's
    /// state.
    async fn crawl(trial: &Trial) -> (String, Option<String>) {
        let (task, _) = trial.task("a.cn").await;
        for _ in 0..40 {
            trial.measure().await;
            for &agent in &trial.agents {
                trial.answer(agent, |_| Some(took(30))).await;
            }
            trial.locate().await;
            trial.assign().await;
            if trial.state(task).await.0 == "assigned" {
                break;
            }
        }
        trial.state(task).await
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn one_liar_among_seven_landmarks_is_left_out_and_comes_back_when_it_is_honest(pool: PgPool) {
        let trial = landmarks(pool, 7).await;
        let liar = trial.agents[4];
        lie(&trial, &[liar], 3).await;
        fit(&trial).await;
        let held = quarantined(&trial).await;
        assert_eq!(held.len(), 1, "{held:?}");
        assert_eq!(held[0].0, liar.0);
        assert!(held[0].1.starts_with("its reports are too long: off by a factor of 2."), "{}", held[0].1);
        let map = trial.map().await.expect("an embedding");
        assert_eq!(map.landmarks().len(), 6);
        assert!(!map.landmarks().contains(&liar.0));
        assert!(map.fit_error() < 0.3, "{}", map.fit_error());
        assert!(map.placement(liar.0).is_some(), "it may still crawl: the others know where it is");

        assert_eq!(crawl(&trial).await.0, "assigned");
        let measured = "select count(*) from site_measurements where prober_id = $1";
        let measured: i64 = trial.read_for(measured, liar.0.get()).await;
        assert_eq!(measured, 0, "it is not asked to measure sites");

        trial.mesh(&trial.agents).await;
        for _ in 0..CONSISTENT {
            assert_eq!(quarantined(&trial).await.len(), 1, "not consistent for long enough");
            trial.execute("update mesh_measurements set measured_at = clock_timestamp()").await;
            trial.review().await;
            trial.review().await;
        }
        assert_eq!(quarantined(&trial).await, []);
        fit(&trial).await;
        let map = trial.map().await.expect("an embedding");
        assert_eq!(map.landmarks().len(), 7);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_third_of_liars_raises_the_alarm_and_the_last_good_map_stays(pool: PgPool) {
        let trial = landmarks(pool, 6).await;
        fit(&trial).await;
        let good = trial.map().await.expect("an embedding");
        assert_eq!(good.landmarks().len(), 6);
        lie(&trial, &trial.agents[2..4], 5).await;
        fit(&trial).await;
        let alarm =
            quarantines_and_contradictions::alarm(&mut *trial.conn().await).await.expect("read").expect("an alarm");
        assert_eq!(alarm, "the map cannot be trusted: 2 of 6 landmarks are doubted");
        let kept = trial.map().await.expect("an embedding");
        assert_eq!(kept, good);
        assert_eq!(crawl(&trial).await.0, "assigned");
        let chosen = "select strategy, detail #>> '{fallback,said}' from assignments where fallback = 'untrusted-map'";
        let chosen: Vec<(String, Option<String>)> = trial.rows(chosen).await;
        assert_eq!(chosen, [("random".into(), Some(alarm))]);

        // The operator releases the agents. From now on they measure honestly.
        for (agent, _) in &trial.agents[2..4] {
            assert!(quarantines_and_contradictions::release(&mut *trial.conn().await, *agent).await.expect("release"));
        }
        trial.mesh(&trial.agents).await;
        trial.review().await;
        assert_eq!(quarantined(&trial).await, []);
        assert_eq!(quarantines_and_contradictions::alarm(&mut *trial.conn().await).await.expect("read"), None);
    }

    /// The round trip, in milliseconds, between the landmark with the index `agent` and the site
    /// with the number `site`. The round trip is 2 ms plus the distance on the line of landmarks.
    /// The first landmark is at 0 ms on this line, the landmark `agent` at `10 * agent` ms, and the
    /// site at `9 * site` ms.
    fn millis(agent: usize, site: u64) -> u64 {
        2 + (9 * site).abs_diff(10 * u64::try_from(agent).expect("few"))
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn who_lied_about_sites_measures_some_again_and_is_believed_once_it_is_honest(pool: PgPool) {
        let trial = landmarks(pool, 6).await;
        let mut sites = Vec::new();
        for place in 0..9 {
            let site = fixtures::site(&mut *trial.conn().await, &format!("s{place}.cn")).await;
            let lies = |index| if index == 4 { 5 } else { 1 };
            let measured: Vec<u64> = (0..6).map(|index| lies(index) * millis(index, place)).collect();
            trial.measured_by_all(site, &measured).await;
            sites.push((site, place));
        }
        trial.review().await;
        let held = quarantined(&trial).await;
        assert_eq!(held.iter().map(|(agent, _)| *agent).collect::<Vec<_>>(), [trial.agents[4].0], "{held:?}");
        assert!(held[0].1.contains("from where the other 5 landmarks place 9 sites"), "{}", held[0].1);

        let answer = |target: &OrderTarget| match target {
            OrderTarget::Site { id, .. } => {
                let place = sites.iter().find(|(site, _)| site == id)?.1;
                Some(took(millis(4, place)))
            }
            OrderTarget::Beacon { .. } => None,
        };
        for round in 0..CONSISTENT {
            assert_eq!(quarantined(&trial).await.len(), 1, "released after {round} rounds");
            // The first review orders the measurements, and the second judges them.
            for _ in 0..2 {
                let asked = trial.site_orders().await;
                assert!(asked.iter().all(|(agent, _)| *agent == trial.agents[4].0), "{asked:?}");
                trial.answer(trial.agents[4], answer).await;
                trial.review().await;
            }
            assert_eq!(trial.site_orders().await, [], "it has shown enough for now");
            trial.execute("update site_measurements set measured_at = measured_at - interval '1 hour'").await;
            trial.execute("update quarantines set since = since - interval '1 hour', judged_at = judged_at - interval '1 hour'").await;
            trial.review().await;
        }
        assert_eq!(quarantined(&trial).await, []);
    }
}
