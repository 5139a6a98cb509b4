//! The refined map of the newest embedding: created once per epoch and shared by all jobs of the
//! process.
//!
//! When the process first sees an epoch, it creates the map from the mesh of the agents that the
//! embedding places. The epoch is the seed of the map's random numbers. The map is not stored,
//! because a choice can be repeated from the predictions that its assignment stores.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use sqlx::{PgConnection, Postgres, Transaction};
use tokio::sync::Mutex;

use crate::gnp::{Embedding, Mesh, PlainSwitches, Refined, RefinedSwitches, Tier, trust};
use crate::model::geo::Position;
use crate::model::{AgentId, Rtt, SiteId};
use crate::store::assignments::past_crawls_and_site_facts;
use crate::store::embeddings;
use crate::store::measurements::{self, MeshMeasurement};
use crate::strategy::learned_distances::LearnedCorrections;

/// Age after which crawl residuals are read again. A single crawl changes little, and reading the
/// residuals of a thousand agents takes a tenth of a second.
const RESIDUALS_AGE: Duration = Duration::from_secs(10);

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
    tier: Tier,
    /// Locked while a map is created, so that two jobs do not create the same map.
    current: Mutex<Option<Arc<CurrentMap>>>,
    /// The embedding that was the newest at the last read. Locked during each read.
    embedding: Mutex<Option<Arc<Embedding>>>,
    /// The crawl residuals, and when they were read.
    residuals: Mutex<Option<(Instant, Arc<LearnedCorrections>)>>,
}

impl MapCache {
    pub fn new(tier: Tier) -> Self {
        Self { tier, ..Self::default() }
    }

    /// Corrections from the residuals of the agents' newest crawls, at most [`RESIDUALS_AGE`] old.
    pub(super) async fn residuals(&self, conn: &mut PgConnection) -> anyhow::Result<Arc<LearnedCorrections>> {
        let mut kept = self.residuals.lock().await;
        if let Some((_, residuals)) = kept.as_ref().filter(|(read, _)| read.elapsed() < RESIDUALS_AGE) {
            return Ok(Arc::clone(residuals));
        }
        let residuals = past_crawls_and_site_facts::residuals(conn).await.context("read what crawls taught")?;
        let mut sites: Vec<SiteId> =
            residuals.iter().filter(|residual| !residual.probed).map(|residual| residual.site).collect();
        sites.sort_unstable();
        sites.dedup();
        let measured = measurements::of_sites(conn, &sites).await.context("read what tells crawled sites apart")?;
        let residuals = Arc::new(LearnedCorrections::of(&residuals, &measured));
        *kept = Some((Instant::now(), Arc::clone(&residuals)));
        Ok(residuals)
    }

    /// The newest embedding with its refined map; `None` if there is no embedding. `begin` begins
    /// the transaction that reads both.
    pub(super) async fn current(
        &self,
        begin: impl Future<Output = anyhow::Result<Transaction<'static, Postgres>>>,
    ) -> anyhow::Result<Option<Arc<CurrentMap>>> {
        let mut current = self.current.lock().await;
        let mut conn = begin.await?;
        let Some(embedding) = self.embedding(&mut conn).await? else { return Ok(None) };
        if let Some(known) = current.as_ref().filter(|known| known.embedding.epoch() == embedding.epoch()) {
            return Ok(Some(Arc::clone(known)));
        }
        if self.tier != Tier::Refined {
            let plain = Arc::new(CurrentMap { embedding, refined: None });
            return Ok(Some(current.insert(plain).clone()));
        }
        let rows = measurements::mesh(&mut conn).await.context("read the mesh")?;
        drop(conn);
        let placed = |row: &MeshMeasurement| {
            embedding.placement(row.prober).is_some() && embedding.placement(row.target).is_some()
        };
        let mesh: Mesh = rows.into_iter().filter(placed).collect();
        let made = tokio::task::spawn_blocking(move || {
            let seed = embedding.epoch().get().unsigned_abs();
            let refined = Refined::new(&mesh, embedding.landmarks(), &RefinedSwitches::default(), seed)
                .inspect_err(|error| {
                    let epoch = embedding.epoch();
                    tracing::warn!(embedding.epoch = %epoch, error = %error, "no refined map: the plain one is used");
                })
                .ok();
            Arc::new(CurrentMap { embedding, refined })
        })
        .await
        .context("make the refined map")?;
        *current = Some(Arc::clone(&made));
        Ok(Some(made))
    }

    /// The newest embedding; `None` if there is none. Each embedding is read only once, because
    /// embeddings never change.
    pub(super) async fn embedding(&self, conn: &mut PgConnection) -> anyhow::Result<Option<Arc<Embedding>>> {
        let mut kept = self.embedding.lock().await;
        let epoch = embeddings::latest_epoch(conn).await.context("read the newest epoch")?;
        if kept.as_ref().map(|known| known.epoch()) != epoch {
            let latest = embeddings::latest(conn).await.context("read the newest embedding")?;
            *kept = latest.map(|embedding| Arc::new(embedding.with(PlainSwitches::of(self.tier))));
        }
        Ok(kept.clone())
    }
}
