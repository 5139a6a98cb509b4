//! Looks up the geographic positions of sites by the addresses at which probers saw them.

use anyhow::Context;

use crate::jobs::leadership::Leader;
use crate::model::SiteId;
use crate::model::geo::Position;
use crate::store::sites::geographic_positions;

/// Stores geographic positions of these sites, looked up by the sites' addresses. Omits sites
/// whose position was submitted with them.
pub(super) async fn look_up(scheduler: &Leader, sites: &[SiteId]) -> anyhow::Result<()> {
    let Some(geoip) = &scheduler.geoip else { return Ok(()) };
    // A separate transaction, which ends before tasks are locked, keeps the lock order: a
    // site's row must be locked before the site's tasks.
    let mut tx = scheduler.begin().await?;
    let seen = geographic_positions::unlisted(&mut tx, sites).await.context("read where sites are seen")?;
    let found: Vec<(SiteId, Position)> =
        seen.into_iter().filter_map(|(site, address)| Some((site, geoip.position(address)?))).collect();
    geographic_positions::looked_up(&mut tx, &found).await.context("store where sites are")?;
    tx.commit().await.context("commit where sites are")
}
