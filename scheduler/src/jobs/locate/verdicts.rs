//! Judging: decides whether the sites that are being located have one location or several.
//!
//! The detector, `gnp::AnycastDetector`, is pure; this module reads its input and stores its
//! result. A detector is created only when the epoch or the agents' positions change, because its
//! creation draws thousands of points from the map.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use sqlx::PgConnection;

use crate::gnp::{AnycastDetector, Embedding, LocationVerdict, Mesh, Observation};
use crate::model::geo::Position;
use crate::model::{AgentId, EmbeddingEpoch, SiteId};
use crate::store::sites::verdicts::SuspectedSite;
use crate::store::{agents, measurements};

/// The inputs from which the current detector was created.
type MadeFrom = (Option<EmbeddingEpoch>, BTreeMap<AgentId, Position>);

/// Judges sites with the newest embedding.
#[derive(Debug, Default)]
pub(in crate::jobs) struct Judge {
    /// Locked only while the detector is read or replaced, not while sites are judged.
    detector: Mutex<Option<(MadeFrom, Arc<AnycastDetector>)>>,
}

impl Judge {
    pub(in crate::jobs) const fn new() -> Self {
        Self { detector: Mutex::new(None) }
    }

    /// Judges these sites and returns the verdicts to store.
    pub(in crate::jobs) async fn judge(
        &self,
        conn: &mut PgConnection,
        sites: &[SiteId],
        embedding: Option<&Arc<Embedding>>,
    ) -> anyhow::Result<Vec<(SiteId, Option<SuspectedSite>)>> {
        if sites.is_empty() {
            return Ok(Vec::new());
        }
        let fleet = agents::positions(conn).await.context("read the agents' positions")?;
        let positions: BTreeMap<AgentId, Position> =
            fleet.iter().filter_map(|one| Some((one.agent, one.position?))).collect();
        let names: HashMap<AgentId, String> = fleet.into_iter().map(|one| (one.agent, one.name)).collect();
        let detector = self.detector(conn, embedding, positions).await?;
        let observations = measurements::observations(conn, sites).await.context("read what landmarks saw")?;
        tokio::task::spawn_blocking(move || {
            observations.into_iter().map(|(site, seen)| (site, suspicion(&detector, &seen, &names))).collect()
        })
        .await
        .context("judge sites")
    }

    async fn detector(
        &self,
        conn: &mut PgConnection,
        embedding: Option<&Arc<Embedding>>,
        positions: BTreeMap<AgentId, Position>,
    ) -> anyhow::Result<Arc<AnycastDetector>> {
        let made_from = (embedding.map(|embedding| embedding.epoch()), positions);
        let kept = self.detector.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((from, detector)) = kept
            && from == made_from
        {
            return Ok(detector);
        }
        let positions = made_from.1.clone();
        let detector = match embedding {
            None => AnycastDetector::without_map(positions),
            Some(embedding) => {
                let mesh: Mesh = measurements::mesh(conn).await.context("read the mesh")?.into_iter().collect();
                let embedding = Arc::clone(embedding);
                tokio::task::spawn_blocking(move || AnycastDetector::new(&embedding, &mesh, positions))
                    .await
                    .context("make the detector")?
            }
        };
        let detector = Arc::new(detector);
        *self.detector.lock().unwrap_or_else(PoisonError::into_inner) = Some((made_from, Arc::clone(&detector)));
        Ok(detector)
    }
}

fn suspicion(
    detector: &AnycastDetector,
    seen: &[Observation],
    names: &HashMap<AgentId, String>,
) -> Option<SuspectedSite> {
    match detector.judge(seen) {
        LocationVerdict::Unicast => None,
        LocationVerdict::Suspect { confidence, evidence } => {
            let name = |agent: AgentId| names.get(&agent).cloned().unwrap_or_else(|| format!("agent {agent}"));
            let words: Vec<String> = evidence.iter().map(|evidence| evidence.words(name)).collect();
            Some(SuspectedSite { confidence, evidence: words.join("; ") })
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use crate::jobs::fixtures::Trial;

    /// Ten agents on a line with 10 ms between neighbours, and a map. The six landmarks have
    /// measured a site; `millis` are its round trips. The last agent has the most free slots.
    async fn measured(pool: PgPool, millis: [u64; 6]) -> Trial {
        let trial = Trial::new(pool, 10).await;
        let landmarks = [0, 2, 4, 5, 7, 9].map(|place| trial.agents[place]);
        trial.mesh(&trial.agents).await;
        trial.set_landmarks(&landmarks).await;
        trial.fit().await;
        trial.execute("update agents set capacity = 50 where name = 'a9'").await;
        let (_, site) = trial.task("a.cn").await;
        trial.measure().await;
        let of_each = landmarks.into_iter().zip(millis).map(|((agent, _), millis)| (agent, Some(millis)));
        trial.measured(site, &of_each.collect::<Vec<_>>()).await;
        trial
    }

    async fn text(trial: &Trial, sql: &'static str) -> String {
        trial.read(sql).await
    }

    const CHOSEN: &str = "select a.name from assignments c join agents a on a.id = c.agent_id";

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_near_to_everybody_is_suspect_and_goes_to_the_freest_near_agent(pool: PgPool) {
        let trial = measured(pool, [4, 4, 4, 4, 4, 9]).await;
        trial.locate().await;
        trial.assign().await;
        assert_eq!(trial.count("select count(*) from site_verdicts where suspect and confidence > 0.5").await, 1);
        let evidence = text(&trial, "select evidence from site_verdicts").await;
        assert!(evidence.starts_with("several places explain the round trips"), "{evidence}");
        assert!(evidence.contains(" and a"), "agents are named: {evidence}");
        assert_eq!(text(&trial, CHOSEN).await, "a9", "farther than the others, near, and the freest");
        assert_eq!(text(&trial, "select cause::text from assignments where fallback is null").await, "spread");
        assert_eq!(text(&trial, "select strategy from assignments").await, "gnp-top3");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_in_one_place_is_judged_so_and_chosen_as_ever(pool: PgPool) {
        let trial = measured(pool, [4, 24, 44, 54, 74, 94]).await;
        trial.locate().await;
        trial.assign().await;
        assert_eq!(trial.count("select count(*) from site_verdicts where not suspect and evidence = ''").await, 1);
        assert_eq!(trial.count("select count(*) from assignments where cause = 'strategy'").await, 1);
        assert_ne!(text(&trial, CHOSEN).await, "a9");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn landmarks_that_were_sent_to_different_networks_make_a_site_suspect(pool: PgPool) {
        let trial = measured(pool, [4, 24, 44, 54, 74, 94]).await;
        trial.execute("update site_measurements set address = '192.0.2.1'").await;
        let elsewhere = "update site_measurements set address = '198.51.100.1' where prober_id = $1";
        trial.execute_for(elsewhere, trial.agents[9].0.get()).await;
        trial.locate().await;
        let evidence = text(&trial, "select evidence from site_verdicts where suspect").await;
        assert_eq!(evidence, "6 landmarks were sent to 2 different networks, 192.0.2.1 and 198.51.100.1 among them");
    }
}
