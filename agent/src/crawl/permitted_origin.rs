//! Finds a site's origin before a crawl, and waits for the scheduler's permit to send requests to
//! the site's address.

use std::time::Duration;

use tokio::time::Instant;

use super::fetch::failure_cause::Trouble;
use super::fetch::site_address::SiteAddress;
use super::job::Job;
use super::outcome::WalkEnd;
use crate::net::origin::Origin;
use crate::net::request_context::RequestContext;
use crate::probe::origin_search::settle;

/// Waits for the permit for the site's address; then finds the site's origin if it is unknown.
/// `limit` is the time limit for each request. Sets `settled_at` if the search sent requests.
pub(super) async fn find_origin(
    job: &Job,
    context: &RequestContext,
    site_address: &SiteAddress,
    limit: Duration,
    settled_at: &mut Option<Instant>,
) -> Result<Origin, WalkEnd> {
    if let Some(origin) = &job.origin {
        site_address.of(&origin.host).await?;
        return Ok(origin.clone());
    }
    let named = Origin::candidates(&job.name);
    let named = named.map_err(|error| WalkEnd::Unreachable(Trouble::Other, error.to_string()))?;
    if let Some(first) = named.first() {
        site_address.of(&first.host).await?;
    }
    let settled = settle(context, &job.name, job.policy.request_interval, limit).await;
    *settled_at = Some(Instant::now());
    let origin = settled?;
    site_address.of(&origin.host).await?;
    Ok(origin)
}
