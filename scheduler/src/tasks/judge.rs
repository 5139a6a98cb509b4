//! Judging: whether the sites that are being located stand in one place.
//!
//! The detector is `gnp::Detector`, pure; this gathers what it judges by and records what it said. It is made once an
//! epoch, since it draws thousands of places from the map.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use sqlx::PgConnection;

use crate::gnp::{Detector, Embedding, Mesh, Position, Sighting, Verdict};
use crate::model::{AgentId, EmbeddingEpoch, SiteId};
use crate::store::verdicts::Suspicion;
use crate::store::{agents, measurements, verdicts};

/// What the detector in use was made from.
type MadeFrom = (Option<EmbeddingEpoch>, BTreeMap<AgentId, Position>);

/// Judges sites by the newest embedding.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// Behind a lock that is held only to look or to replace.
    detector: Mutex<Option<(MadeFrom, Arc<Detector>)>>,
}

impl Judge {
    pub(super) const fn new() -> Self {
        Self { detector: Mutex::new(None) }
    }

    /// Judges these sites and returns what is to be stored.
    pub(super) async fn judge(
        &self,
        conn: &mut PgConnection,
        sites: &[SiteId],
        embedding: Option<&Arc<Embedding>>,
    ) -> anyhow::Result<Vec<(SiteId, Option<Suspicion>)>> {
        if sites.is_empty() {
            return Ok(Vec::new());
        }
        let fleet = agents::positions(conn).await.context("read the agents' positions")?;
        let positions: BTreeMap<AgentId, Position> =
            fleet.iter().filter_map(|one| Some((one.agent, one.position?))).collect();
        let names: HashMap<AgentId, String> = fleet.into_iter().map(|one| (one.agent, one.name)).collect();
        let detector = self.detector(conn, embedding, positions).await?;
        let sightings = verdicts::sightings(conn, sites).await.context("read what landmarks saw")?;
        tokio::task::spawn_blocking(move || {
            sightings.into_iter().map(|(site, seen)| (site, suspicion(&detector, &seen, &names))).collect()
        })
        .await
        .context("judge sites")
    }

    async fn detector(
        &self,
        conn: &mut PgConnection,
        embedding: Option<&Arc<Embedding>>,
        positions: BTreeMap<AgentId, Position>,
    ) -> anyhow::Result<Arc<Detector>> {
        let made_from = (embedding.map(|embedding| embedding.epoch()), positions);
        let kept = self.detector.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((from, detector)) = kept
            && from == made_from
        {
            return Ok(detector);
        }
        let positions = made_from.1.clone();
        let detector = match embedding {
            None => Detector::without_map(positions),
            Some(embedding) => {
                let mut mesh = Mesh::new();
                for pair in measurements::mesh(conn).await.context("read the mesh")? {
                    mesh.insert(pair.prober, pair.target, pair.rtt);
                }
                let embedding = Arc::clone(embedding);
                tokio::task::spawn_blocking(move || Detector::new(&embedding, &mesh, positions))
                    .await
                    .context("make the detector")?
            }
        };
        let detector = Arc::new(detector);
        *self.detector.lock().unwrap_or_else(PoisonError::into_inner) = Some((made_from, Arc::clone(&detector)));
        Ok(detector)
    }
}

fn suspicion(detector: &Detector, seen: &[Sighting], names: &HashMap<AgentId, String>) -> Option<Suspicion> {
    match detector.judge(seen) {
        Verdict::Unicast => None,
        Verdict::Suspect { confidence, evidence } => {
            let name = |agent: AgentId| names.get(&agent).cloned().unwrap_or_else(|| format!("agent {agent}"));
            let words: Vec<String> = evidence.iter().map(|evidence| evidence.words(name)).collect();
            Some(Suspicion { confidence, evidence: words.join("; ") })
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use crate::model::{AgentId, SessionId};
    use crate::tasks::assign::Assign;
    use crate::tasks::fit::Fit;
    use crate::tasks::locate::Locate;
    use crate::tasks::measure::Measure;
    use crate::tasks::trial::Trial;

    /// Ten agents on a line, 10 ms apart, six of them landmarks, with a map.
    async fn mapped(pool: PgPool) -> (Trial, Vec<(AgentId, SessionId)>) {
        let trial = Trial::new(pool).await;
        let agents = trial.connect(10).await;
        let landmarks = [0, 2, 4, 5, 7, 9].map(|i| agents[i]);
        trial.mesh(&agents).await;
        trial.set_landmarks(&landmarks).await;
        Fit::new(trial.fit()).run_once().await.expect("a fit");
        (trial, agents)
    }

    /// Measures a site from the landmarks, and carries its task to its assignment.
    async fn assigned(trial: &Trial, agents: &[(AgentId, SessionId)], site: &str, millis: [u64; 6]) {
        let (_, site) = trial.task(site).await;
        Measure::new(trial.plan()).run_once().await.expect("a pass");
        let measured: Vec<_> =
            [0, 2, 4, 5, 7, 9].into_iter().zip(millis).map(|(i, millis)| (agents[i].0, Some(millis))).collect();
        trial.measured(site, &measured).await;
        Locate::new(trial.plan()).run_once().await.expect("a pass");
        Assign::new(trial.plan()).run_once().await.expect("a pass");
    }

    async fn text(trial: &Trial, sql: &'static str) -> String {
        sqlx::query_scalar(sql).fetch_one(&trial.scheduler.pool).await.expect("a text")
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_near_to_everybody_is_suspect_and_goes_to_the_freest_near_agent(pool: PgPool) {
        let (trial, agents) = mapped(pool).await;
        trial.execute("update agents set capacity = 50 where name = 'a9'").await;
        assigned(&trial, &agents, "many.cn", [4, 4, 4, 4, 4, 9]).await;
        assert_eq!(trial.count("select count(*) from site_verdicts where suspect and confidence > 0.5").await, 1);
        let evidence = text(&trial, "select evidence from site_verdicts").await;
        assert!(evidence.starts_with("no one place explains the round trips"), "{evidence}");
        assert!(evidence.contains(" and a"), "agents are named: {evidence}");
        let chosen = "select a.name from assignments c join agents a on a.id = c.agent_id";
        assert_eq!(text(&trial, chosen).await, "a9", "farther than the others, near, and the freest");
        assert_eq!(text(&trial, "select cause::text from assignments where fallback is null").await, "spread");
        assert_eq!(text(&trial, "select strategy from assignments").await, "gnp-top3");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_in_one_place_is_judged_so_and_chosen_as_ever(pool: PgPool) {
        let (trial, agents) = mapped(pool).await;
        trial.execute("update agents set capacity = 50 where name = 'a9'").await;
        assigned(&trial, &agents, "one.cn", [4, 24, 44, 54, 74, 94]).await;
        assert_eq!(trial.count("select count(*) from site_verdicts where not suspect and evidence = ''").await, 1);
        assert_eq!(trial.count("select count(*) from assignments where cause = 'strategy'").await, 1);
        let chosen = "select a.name from assignments c join agents a on a.id = c.agent_id";
        assert_ne!(text(&trial, chosen).await, "a9");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn landmarks_that_were_sent_to_different_networks_make_a_site_suspect(pool: PgPool) {
        let (trial, agents) = mapped(pool).await;
        let (_, site) = trial.task("geo.cn").await;
        Measure::new(trial.plan()).run_once().await.expect("a pass");
        let measured: Vec<_> = [(0, 4), (2, 24), (4, 44), (5, 54), (7, 74), (9, 94)]
            .into_iter()
            .map(|(i, millis)| (agents[i].0, Some(millis)))
            .collect();
        trial.measured(site, &measured).await;
        trial.execute("update site_measurements set address = '192.0.2.1'").await;
        trial
            .execute(
                "update site_measurements set address = '198.51.100.1'
                 where prober_id = (select id from agents where name = 'a9')",
            )
            .await;
        Locate::new(trial.plan()).run_once().await.expect("a pass");
        let evidence = text(&trial, "select evidence from site_verdicts where suspect").await;
        assert_eq!(evidence, "6 landmarks were sent to 2 different networks, 192.0.2.1 and 198.51.100.1 among them");
    }
}
