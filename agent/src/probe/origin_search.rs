//! Finds a site's origin. For a bare host, the search tries https before http. While responses
//! redirect to another origin inside the registrable domain, the site moves to that origin, at most
//! [`MAX_HOPS`] times. A redirect that leaves the domain does not move the site. The host of each
//! hop is resolved and vetted.

use std::time::Duration;

use url::Url;

use super::error::ProbeError;
use super::http::{Connection, Endpoint};
use super::measurement_result::{Observation, Observer, Phases};
use super::pacer::RequestPacer;
use super::target::Target;
use crate::net::guard::Guard;
use crate::net::origin::Origin;
use crate::net::request_context::RequestContext;

/// Maximum number of hops from the submitted name to the final origin. A longer chain counts as a
/// loop.
const MAX_HOPS: usize = 5;

/// The origin of a target that needs no search.
pub(crate) fn settled_origin(target: &Target) -> Option<&Origin> {
    target.candidates.first().filter(|_| target.candidates.len() == 1 && !may_move(target))
}

/// Whether a redirect inside the registrable domain moves the target to another origin. A target
/// whose origin is known does not move.
const fn may_move(target: &Target) -> bool {
    target.is_unsettled
}

/// The origin that was found, with the connection on which it answered the first request.
pub(crate) struct SettledEndpoint<'a> {
    pub(crate) endpoint: Endpoint<'a>,
    pub(crate) connection: Connection,
    pub(crate) phases: Phases,
    /// Whether the connection can be used for another request.
    pub(crate) reusable: bool,
}

/// Finds the origin of a submitted name. `interval` is the pause before every request; `timeout` is
/// the time limit for each request.
pub async fn settle(
    context: &RequestContext,
    name: &str,
    interval: Duration,
    timeout: Duration,
) -> Result<Origin, ProbeError> {
    let target = Target::site(name).map_err(|error| ProbeError::BadOrder(error.to_string()))?;
    Ok(find(context, &target, timeout, &mut RequestPacer::new(interval), &mut |_| {}).await?.endpoint.origin)
}

/// Finds a target's origin, and returns it with the open connection.
pub(crate) async fn find<'a>(
    context: &'a RequestContext,
    target: &Target,
    timeout: Duration,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<SettledEndpoint<'a>, ProbeError> {
    let (mut found, mut location) = first_that_answers(context, target, timeout, pacer, observe).await?;
    if !may_move(target) {
        return Ok(found);
    }
    for _ in 0..MAX_HOPS {
        let Some(next) = location.as_deref().and_then(|location| moved_to(&found.endpoint.origin, location)) else {
            return Ok(found);
        };
        match answer_of(context, target, next, timeout, pacer, observe).await {
            Ok(moved) => (found, location) = moved,
            Err(refused @ ProbeError::Guard(_)) => return Err(refused),
            // The new origin does not respond, so keep the origin that responded.
            Err(_) => return Ok(found),
        }
    }
    Ok(found)
}

/// The origin to which a redirect moves the site at `origin`. `None` if the redirect stays in this
/// origin or leaves the registrable domain.
fn moved_to(origin: &Origin, location: &str) -> Option<Origin> {
    let base = Url::parse(&format!("{origin}/")).ok()?;
    let target = Origin::of(&base.join(location).ok()?).ok()?;
    (target != *origin && origin.same_site(&target)).then_some(target)
}

async fn first_that_answers<'a>(
    context: &'a RequestContext,
    target: &Target,
    timeout: Duration,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<(SettledEndpoint<'a>, Option<String>), ProbeError> {
    let mut failure = None;
    for origin in &target.candidates {
        match answer_of(context, target, origin.clone(), timeout, pacer, observe).await {
            Ok(found) => return Ok(found),
            // Trying the other scheme would fail too, because the name and the addresses are the
            // same.
            Err(error @ (ProbeError::Dns(_) | ProbeError::Guard(_))) => return Err(error),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| ProbeError::BadOrder("no origin to try".to_owned())))
}

async fn answer_of<'a>(
    context: &'a RequestContext,
    target: &Target,
    origin: Origin,
    timeout: Duration,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<(SettledEndpoint<'a>, Option<String>), ProbeError> {
    let guard = guard_for(context, target);
    let mut endpoint = Endpoint::resolve(context, &guard, origin, target, timeout).await?;
    let (mut connection, phases, mut answer) = endpoint.warm_up(pacer, observe).await?;
    observe(Observation::WarmUp(answer.rtt));
    if may_move(target) && endpoint.refuses_head() && answer.reusable {
        // A server that refuses HEAD may still answer a GET with a redirect.
        answer = endpoint.get(&mut connection, pacer).await?;
    }
    Ok((SettledEndpoint { endpoint, connection, phases, reusable: answer.reusable }, answer.location))
}

pub(crate) fn guard_for(context: &RequestContext, target: &Target) -> Guard {
    if target.enrolled { context.guard.for_beacon() } else { context.guard.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Origin {
        text.parse().unwrap()
    }

    #[test]
    fn redirects_move_a_site_only_inside_its_domain() {
        let from = origin("http://example.com.cn");
        let moved = |location: &str| moved_to(&from, location).map(|to| to.to_string());
        assert_eq!(moved("https://www.example.com.cn/index").as_deref(), Some("https://www.example.com.cn"));
        assert_eq!(moved("//m.example.com.cn/").as_deref(), Some("http://m.example.com.cn"));
        assert_eq!(moved("/index.html"), None);
        assert_eq!(moved("http://example.com.cn/x"), None);
        assert_eq!(moved("https://other.com.cn/"), None);
        assert_eq!(moved("https://com.cn/"), None);
        assert_eq!(moved("http://127.0.0.1/"), None);
        assert_eq!(moved("ftp://www.example.com.cn/"), None);
        assert_eq!(moved("http://"), None);
        assert_eq!(moved_to(&origin("http://10.0.0.1"), "http://11.0.0.1/"), None);
        assert!(moved_to(&origin("http://10.0.0.1"), "https://10.0.0.1/").is_some());
    }
}
