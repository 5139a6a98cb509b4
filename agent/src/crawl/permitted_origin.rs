//! Finds a site's origin before a crawl, and waits for the scheduler's permit to send requests to
//! the site's address.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::fetch::failure_cause::Trouble;
use super::fetch::site_address::{AddressError, NotPermitted, SiteAddress};
use super::job::Job;
use super::outcome::Blocker;
use super::walk::WalkEnd;
use crate::net::guard::ResolveError;
use crate::net::origin::Origin;
use crate::net::request_context::RequestContext;
use crate::probe::ProbeError;
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
        permitted(site_address, &origin.host).await?;
        return Ok(origin.clone());
    }
    let named = Origin::candidates(&job.name);
    let named = named.map_err(|error| WalkEnd::Unreachable(Trouble::Other, error.to_string()))?;
    if let Some(first) = named.first() {
        permitted(site_address, &first.host).await?;
    }
    let settled = settle(context, &job.name, job.policy.request_interval, limit).await;
    *settled_at = Some(Instant::now());
    let origin = settled.map_err(unsettled)?;
    permitted(site_address, &origin.host).await?;
    Ok(origin)
}

/// Waits for the scheduler's permit to send requests to the host's address. Returns the address.
pub(super) async fn permitted(site_address: &SiteAddress, host: &str) -> Result<IpAddr, WalkEnd> {
    match site_address.of(host).await {
        Ok(address) => Ok(address),
        Err(AddressError::NotPermitted(NotPermitted(reason))) => Err(WalkEnd::NotPermitted(reason)),
        Err(AddressError::Resolve(ResolveError::Refused(refused))) => {
            Err(WalkEnd::Blocked(Blocker::Guard, refused.to_string()))
        }
        Err(error @ AddressError::Timeout { .. }) => Err(WalkEnd::Unreachable(Trouble::TimedOut, error.to_string())),
        Err(AddressError::Resolve(ResolveError::Dns(error))) => {
            Err(WalkEnd::Unreachable(Trouble::from(&error), error.to_string()))
        }
    }
}

fn unsettled(error: ProbeError) -> WalkEnd {
    match error {
        ProbeError::Guard(refused) => WalkEnd::Blocked(Blocker::Guard, refused.to_string()),
        other => WalkEnd::Unreachable(Trouble::from(&other), other.to_string()),
    }
}
