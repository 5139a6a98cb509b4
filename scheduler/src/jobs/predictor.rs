//! What distances are predicted from: the current map, and what crawls taught. A pass reads both
//! before it locks any row, because their preparation may take a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;

use crate::gnp::{Mesh, Refined, RefinedSwitches, Tier};
use crate::jobs::leadership::Leader;
use crate::jobs::refined_map::{CurrentMap, MapCache};
use crate::model::SiteId;
use crate::store::assignments::past_crawls_and_site_facts;
use crate::store::measurements::{self, MeshMeasurement};
use crate::strategy::learned_distances::LearnedCorrections;

/// Age after which crawl residuals are read again. A single crawl changes little, and reading the
/// residuals of a thousand agents takes a tenth of a second.
const RESIDUALS_AGE: Duration = Duration::from_secs(10);

/// What distances are predicted from. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Predictor {
    pub(super) map: Option<Arc<CurrentMap>>,
    /// Corrections of predictions, learned from the agents' crawl residuals.
    pub(super) residuals: Arc<LearnedCorrections>,
}

impl MapCache {
    /// What distances are predicted from. Read before any row is locked, because the preparation of
    /// a new map takes a second.
    pub(super) async fn predictor(&self, leader: &Leader) -> anyhow::Result<Predictor> {
        Ok(Predictor { map: self.current(leader).await?, residuals: self.residuals(leader).await? })
    }

    /// Corrections from the residuals of the agents' newest crawls, at most [`RESIDUALS_AGE`] old.
    async fn residuals(&self, leader: &Leader) -> anyhow::Result<Arc<LearnedCorrections>> {
        let mut kept = self.residuals.lock().await;
        if let Some((_, residuals)) = kept.as_ref().filter(|(read, _)| read.elapsed() < RESIDUALS_AGE) {
            return Ok(Arc::clone(residuals));
        }
        let read = leader.tx("read what crawls taught", |tx| {
            async move {
                let residuals = past_crawls_and_site_facts::residuals(tx).await?;
                let mut sites: Vec<SiteId> =
                    residuals.iter().filter(|residual| !residual.probed).map(|residual| residual.site).collect();
                sites.sort_unstable();
                sites.dedup();
                let measured = measurements::of_sites(tx, &sites).await?;
                Ok((residuals, measured))
            }
            .boxed()
        });
        let (residuals, measured) = read.await?;
        let learn = move || Arc::new(LearnedCorrections::of(&residuals, &measured));
        let residuals = leader.compute(learn).await?;
        *kept = Some((Instant::now(), Arc::clone(&residuals)));
        Ok(residuals)
    }

    /// The newest embedding with its refined map; `None` if there is no embedding.
    pub(super) async fn current(&self, leader: &Leader) -> anyhow::Result<Option<Arc<CurrentMap>>> {
        let mut current = Arc::clone(&self.current).lock_owned().await;
        let known = current.as_ref().map(|known| known.embedding.epoch());
        let read = leader.tx("read the map", |tx| {
            async move {
                let Some(embedding) = self.embedding(tx).await? else { return Ok(None) };
                let makes = self.tier == Tier::Refined && known != Some(embedding.epoch());
                let mesh = if makes { measurements::mesh(tx).await? } else { Vec::new() };
                Ok(Some((embedding, mesh)))
            }
            .boxed()
        });
        let Some((embedding, rows)) = read.await? else { return Ok(None) };
        if let Some(known) = current.as_ref().filter(|known| known.embedding.epoch() == embedding.epoch()) {
            return Ok(Some(Arc::clone(known)));
        }
        if self.tier != Tier::Refined {
            let plain = Arc::new(CurrentMap { embedding, refined: None });
            return Ok(Some(current.insert(plain).clone()));
        }
        let make = move || {
            let placed = |row: &MeshMeasurement| {
                embedding.placement(row.prober).is_some() && embedding.placement(row.target).is_some()
            };
            let mesh: Mesh = rows.into_iter().filter(placed).collect();
            let seed = embedding.epoch().get().unsigned_abs();
            let refined = Refined::new(&mesh, embedding.landmarks(), &RefinedSwitches::default(), seed)
                .inspect_err(|error| {
                    let epoch = embedding.epoch();
                    tracing::warn!(embedding.epoch = %epoch, error = %error, "no refined map: the plain one is used");
                })
                .ok();
            // The lock ends with the computation, so that two jobs do not create the same map, even
            // if a pass is dropped.
            current.insert(Arc::new(CurrentMap { embedding, refined })).clone()
        };
        leader.compute(make).await.map(Some)
    }
}
