//! Places the sites of open tasks in a new embedding.

use std::sync::Arc;

use anyhow::Context;

use crate::gnp::{Embedding, Solver};
use crate::jobs::leadership::Leader;
use crate::jobs::locate::placing::place;
use crate::jobs::locate::verdicts::Judge;
use crate::model::SiteId;
use crate::store::embeddings::outdated_placements::{self, OutdatedSite};
use crate::store::embeddings::placements;
use crate::store::measurements;
use crate::store::sites::verdicts as stored_verdicts;

/// Locates the sites of open tasks in a new embedding, a bounded number per pass. Sites without
/// an open task are located when they get an open task.
pub(super) async fn relocate(
    scheduler: &Leader,
    judge: &Judge,
    embedding: &Arc<Embedding>,
    limit: i64,
) -> anyhow::Result<()> {
    let epoch = embedding.epoch();
    let mut tx = scheduler.begin().await?;
    let outdated = outdated_placements::outdated(&mut tx, epoch, limit).await.context("find outdated placements")?;
    if outdated.is_empty() {
        return Ok(());
    }
    let full = outdated.len() == usize::try_from(limit).unwrap_or(usize::MAX);
    let (open, idle): (Vec<OutdatedSite>, Vec<OutdatedSite>) = outdated.into_iter().partition(|site| site.open);
    let [sites, idle] = [open, idle].map(|of| of.into_iter().map(|site| site.site).collect::<Vec<SiteId>>());
    let measured = measurements::of_sites(&mut tx, &sites).await.context("read measurements")?;
    let judged = judge.judge(&mut tx, &sites, Some(embedding)).await?;
    tx.commit().await.context("end reading")?;
    let located = place(embedding, measured.into_iter().collect(), Solver::LevenbergMarquardt).await?;
    let mut tx = scheduler.begin().await?;
    outdated_placements::set_idle(&mut tx, &idle, epoch).await.context("set placements aside")?;
    placements::upsert(&mut tx, &located).await.context("store placements")?;
    stored_verdicts::upsert(&mut tx, &judged).await.context("store verdicts")?;
    // Deletes the outdated placements that cannot be renewed, because otherwise every pass
    // would find them again.
    outdated_placements::forget_outdated(&mut tx, &sites, epoch).await.context("forget outdated placements")?;
    tx.commit().await.context("commit placements")?;
    if full {
        scheduler.wakes.locate.notify_one();
    }
    scheduler.wakes.assign.notify_one();
    Ok(())
}
