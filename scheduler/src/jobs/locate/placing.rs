//! Computes the placements of sites from their measurements.

use std::sync::Arc;

use anyhow::Context;

use crate::gnp::{Embedding, FEWEST_LANDMARKS, Locator, Solver};
use crate::model::{AgentId, Rtt, SiteId};
use crate::store::embeddings::placements::LocatedSite;

/// A site and its probers' measurements.
type Measured = (SiteId, Vec<(AgentId, Rtt)>);

/// Locates the sites that can be located, on a thread outside the async runtime's own threads.
pub(super) async fn place(
    embedding: &Arc<Embedding>,
    sites: Vec<Measured>,
    solver: Solver,
) -> anyhow::Result<Vec<LocatedSite>> {
    let embedding = Arc::clone(embedding);
    let place_all = move || match embedding.locator() {
        Ok(locator) => sites.into_iter().filter_map(|site| place_one(&embedding, &locator, site, solver)).collect(),
        Err(error) => {
            tracing::warn!(error = %error, "no site could be located; agents are chosen by measured distances");
            Vec::new()
        }
    };
    tokio::task::spawn_blocking(place_all).await.context("locate sites")
}

fn place_one(
    embedding: &Embedding,
    locator: &Locator<'_>,
    (site, mut measured): Measured,
    solver: Solver,
) -> Option<LocatedSite> {
    measured.retain(|(agent, _)| embedding.placement(*agent).is_some());
    if measured.len() < FEWEST_LANDMARKS {
        return None;
    }
    match locator.locate(&measured, solver) {
        Ok(placement) => Some(LocatedSite { site, placement }),
        Err(error) => {
            tracing::warn!(site.id = %site, error = %error,
                "a site could not be located; its agent is chosen by measured distances");
            None
        }
    }
}
