//! The refined map of the newest embedding: created once per epoch and shared by all jobs of the
//! process.
//!
//! When the process first sees an epoch, it creates the map from the mesh of the agents that the
//! embedding places. The epoch is the seed of the map's random numbers. The map is not stored,
//! because a choice can be repeated from the predictions that its assignment stores.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use sqlx::PgConnection;
use tokio::sync::Mutex;

use crate::gnp::{Embedding, PlainSwitches, Refined, Tier, trust};
use crate::model::geo::Position;
use crate::model::{AgentId, Rtt};
use crate::store::embeddings;
use crate::strategy::learned_distances::LearnedCorrections;

/// An embedding and, if it could be made, its refined map.
#[derive(Debug)]
pub struct CurrentMap {
    /// The newest embedding.
    pub embedding: Arc<Embedding>,
    /// `None` if another kind of map was configured, or the mesh has too few data for a refined
    /// map. Distances are then predicted from the embedding.
    pub refined: Option<Refined>,
}

impl CurrentMap {
    /// Whether a non-landmark agent made one of the measurements.
    pub(super) fn has_claims(&self, measured: &[(AgentId, Rtt)]) -> bool {
        measured.iter().any(|(agent, _)| !self.embedding.landmarks().contains(agent))
    }

    /// The measurements of a site that has only one location, without rejected claims.
    pub(super) fn believed(
        &self,
        positions: &BTreeMap<AgentId, Position>,
        measured: &[(AgentId, Rtt)],
    ) -> Vec<(AgentId, Rtt)> {
        let believed = trust::believed(self.embedding.landmarks(), self.refined.as_ref(), positions, measured);
        for (agent, claim) in measured.iter().filter(|one| !believed.contains(one)) {
            tracing::debug!(agent.id = %agent, rtt_ms = claim.as_millis_f64(), "a claim to be near a site was rejected");
        }
        believed
    }
}

/// The newest map of this process.
#[derive(Debug, Default)]
pub struct MapCache {
    pub(super) tier: Tier,
    /// Locked while a map is created.
    pub(super) current: Arc<Mutex<Option<Arc<CurrentMap>>>>,
    /// The embedding that was the newest at the last read. Locked during each read.
    embedding: Mutex<Option<Arc<Embedding>>>,
    /// The crawl residuals, and when they were read.
    pub(super) residuals: Mutex<Option<(Instant, Arc<LearnedCorrections>)>>,
}

impl MapCache {
    pub fn new(tier: Tier) -> Self {
        Self { tier, ..Self::default() }
    }

    /// The newest embedding; `None` if there is none. Each embedding is read only once, because
    /// embeddings never change.
    pub(super) async fn embedding(&self, conn: &mut PgConnection) -> anyhow::Result<Option<Arc<Embedding>>> {
        let mut kept = self.embedding.lock().await;
        let epoch = embeddings::latest_epoch(conn).await?;
        if kept.as_ref().map(|known| known.epoch()) != epoch {
            let latest = embeddings::latest(conn).await?;
            *kept = latest.map(|embedding| Arc::new(embedding.with(PlainSwitches::of(self.tier))));
        }
        Ok(kept.clone())
    }
}
