//! The address to which a crawl sends its requests: one of the site's addresses for which the crawl
//! has a permit. The HTTP client resolves names only here.
//!
//! For each address, the scheduler limits the requests of all agents to all sites at the address.
//! So a crawl requests a permit before it connects to an address, and then stays with that address.
//! A crawl requests another permit in two cases: the site's name no longer resolves to the address,
//! or the address does not respond and the site has another address. A crawl keeps its permits
//! until it ends. A crawl started by hand needs no permit.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::time::timeout;

use crate::crawl::politeness::request_interval::SchedulerSilence;
use crate::net::dns::{DnsError, Resolver};
use crate::net::guard::{Guard, ResolveError};
use crate::net::request_context::RequestContext;

/// Requests a permit for an address from the scheduler. The future stays pending while the
/// scheduler is unreachable.
pub type PermitSource = Arc<dyn Fn(IpAddr) -> BoxFuture<'static, Result<(), NotPermitted>> + Send + Sync>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotPermitted(pub String);

/// How a crawl requests permits, and since when the scheduler has been silent.
#[derive(Clone, Default)]
pub struct AddressPermits {
    source: Option<PermitSource>,
    silence: SchedulerSilence,
}

impl AddressPermits {
    /// Permits that the scheduler grants through `source`.
    pub const fn from_scheduler(source: PermitSource, silence: SchedulerSilence) -> Self {
        Self { source: Some(source), silence }
    }

    /// Whether a scheduler grants the permits, so that the crawl can return its lease to that
    /// scheduler.
    pub(in crate::crawl) const fn come_from_scheduler(&self) -> bool {
        self.source.is_some()
    }

    fn of(&self, address: IpAddr) -> PendingPermit {
        match &self.source {
            Some(source) => source(address).shared(),
            None => futures_util::future::ready(Ok(())).boxed().shared(),
        }
    }
}

impl fmt::Debug for AddressPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressPermits").field("asked", &self.come_from_scheduler()).finish()
    }
}

#[derive(Debug, thiserror::Error)]
pub(in crate::crawl) enum AddressError {
    #[error(transparent)]
    Resolve(ResolveError),
    #[error("{host}: no address within {limit:?}")]
    Timeout { host: String, limit: Duration },
    #[error(transparent)]
    NotPermitted(NotPermitted),
}

/// A pending permit request, which several connections may await.
type PendingPermit = Shared<BoxFuture<'static, Result<(), NotPermitted>>>;

pub(in crate::crawl) struct SiteAddress {
    guard: Guard,
    resolver: Resolver,
    permits: AddressPermits,
    limit: Duration,
    /// This lock is never held across an await.
    at: Mutex<AddressState>,
}

#[derive(Default)]
struct AddressState {
    /// The host for which an address was last requested.
    host: String,
    held: Option<IpAddr>,
    /// The pending permit request and its address. All connections share the request, so there is
    /// at most one.
    asking: Option<(IpAddr, PendingPermit)>,
    /// The last address that the crawl marked as unresponsive.
    silent: Option<IpAddr>,
}

impl SiteAddress {
    /// Starts without an address. `limit` is the time limit for resolving a name.
    pub(in crate::crawl) fn new(context: &RequestContext, permits: AddressPermits, limit: Duration) -> Self {
        Self { guard: context.guard.clone(), resolver: context.resolver.clone(), permits, limit, at: Mutex::default() }
    }

    pub(super) fn scheduler_is_silent(&self) -> bool {
        self.permits.silence.has_begun()
    }

    /// The vetted and permitted address to connect to for this host.
    pub(in crate::crawl) async fn of(&self, host: &str) -> Result<IpAddr, AddressError> {
        let found = timeout(self.limit, self.guard.resolve(&self.resolver, host)).await;
        let late = |_| AddressError::Timeout { host: host.to_owned(), limit: self.limit };
        let found = found.map_err(late)?.map_err(AddressError::Resolve)?;
        loop {
            // Cannot be `None`: without an error, the guard returns at least one address.
            let Some(next) = self.next(host, &found) else {
                return Err(AddressError::Resolve(ResolveError::Dns(DnsError::NotFound(host.to_owned()))));
            };
            let Some((address, asking)) = self.asking(next) else { return Ok(next) };
            let answer = asking.await;
            self.answered(address, answer.is_ok());
            if address == next {
                return answer.map(|()| next).map_err(AddressError::NotPermitted);
            }
        }
    }

    fn next(&self, host: &str, found: &[IpAddr]) -> Option<IpAddr> {
        let mut at = self.at();
        host.clone_into(&mut at.host);
        let (held, silent) = (at.held, at.silent);
        let answers = |address: &&IpAddr| Some(**address) != silent;
        let first = found.iter().find(answers).or(found.first());
        found.iter().filter(answers).find(|address| Some(**address) == held).or(first).copied()
    }

    /// The permit request to await before connecting to `next`, with its address; `None` if `next`
    /// is already permitted. If a request for another address is pending, that request is returned
    /// instead.
    fn asking(&self, next: IpAddr) -> Option<(IpAddr, PendingPermit)> {
        let mut at = self.at();
        if at.held == Some(next) {
            return None;
        }
        Some(at.asking.get_or_insert_with(|| (next, self.permits.of(next))).clone())
    }

    /// Records the reply to a permit request. Only the first call for a request has an effect.
    fn answered(&self, address: IpAddr, granted: bool) {
        let mut at = self.at();
        if at.asking.take_if(|(asked, _)| *asked == address).is_some() && granted {
            at.held = Some(address);
        }
    }

    fn at(&self) -> MutexGuard<'_, AddressState> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `host` is the site's host. robots.txt may redirect to another host, which has
    /// another address.
    fn is_for(&self, host: &str) -> bool {
        self.at().host == host
    }

    /// Marks the address as unresponsive, so that the crawl uses the next address, if there is one.
    pub(super) fn mark_unresponsive(&self) {
        let mut at = self.at();
        at.silent = at.held;
    }
}

/// Resolves names to vetted addresses. For the site's name it returns only the address that the
/// crawl may use.
pub(super) struct GuardedResolver {
    pub(super) guard: Guard,
    pub(super) resolver: Resolver,
    pub(super) site_address: Arc<SiteAddress>,
    /// Whether the resolver is still resolving the name for the newest connection.
    pub(super) resolving: Arc<AtomicBool>,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, resolver) = (self.guard.clone(), self.resolver.clone());
        let (site_address, resolving) = (Arc::clone(&self.site_address), Arc::clone(&self.resolving));
        Box::pin(async move {
            resolving.store(true, Ordering::Relaxed);
            let addresses = if site_address.is_for(name.as_str()) {
                site_address.of(name.as_str()).await.map(|address| vec![address]).map_err(|error| match error {
                    AddressError::Resolve(error) => Box::<dyn std::error::Error + Send + Sync>::from(error),
                    AddressError::NotPermitted(error) => error.into(),
                    error @ AddressError::Timeout { .. } => error.into(),
                })
            } else {
                guard.resolve(&resolver, name.as_str()).await.map_err(Into::into)
            };
            resolving.store(false, Ordering::Relaxed);
            let addresses = addresses?;
            // Port 0 makes the client use the URL's port.
            let addresses = addresses.into_iter().map(|addr| SocketAddr::new(addr, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;

    /// A site address on loopback. The test sends the scheduler's reply through `answer`; `asked`
    /// lists the permit requests.
    fn site_address(answer: watch::Receiver<Option<bool>>, asked: Arc<Mutex<Vec<IpAddr>>>) -> SiteAddress {
        let source: PermitSource = Arc::new(move |address| {
            asked.lock().unwrap().push(address);
            let mut answer = answer.clone();
            Box::pin(async move {
                let granted = answer.wait_for(Option::is_some).await.unwrap().unwrap();
                if granted { Ok(()) } else { Err(NotPermitted("full".to_owned())) }
            })
        });
        let guard = Guard::new(vec!["127.0.0.0/8".parse().unwrap()]);
        let resolver = Resolver::new(Some("127.0.0.1:9".parse().unwrap())).unwrap();
        let permits = AddressPermits::from_scheduler(source, SchedulerSilence::default());
        SiteAddress { guard, resolver, permits, limit: Duration::from_secs(5), at: Mutex::default() }
    }

    #[tokio::test]
    async fn one_permit_request_serves_all_connections() {
        let ((answer, answered), asked) = (watch::channel(None), Arc::default());
        let site_address = site_address(answered, Arc::clone(&asked));
        let (mut one, mut two) = (Box::pin(site_address.of("127.0.0.1")), Box::pin(site_address.of("127.0.0.1")));
        assert!(futures_util::poll!(&mut one).is_pending() && futures_util::poll!(&mut two).is_pending());
        assert!(site_address.is_for("127.0.0.1") && !site_address.is_for("127.0.0.2"));
        site_address.mark_unresponsive();
        // Drop the first waiter, as a stopped crawl does. The request must stay pending.
        drop(one);
        answer.send(Some(true)).unwrap();
        let address: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(two.await.unwrap(), address);
        assert_eq!(site_address.of("127.0.0.1").await.unwrap(), address);
        assert_eq!(*asked.lock().unwrap(), [address], "one question for all");
    }

    #[tokio::test]
    async fn a_refused_address_is_requested_again() {
        let ((answer, answered), asked) = (watch::channel(Some(false)), Arc::default());
        let site_address = site_address(answered, Arc::clone(&asked));
        assert!(matches!(site_address.of("127.0.0.1").await, Err(AddressError::NotPermitted(_))));
        answer.send(Some(true)).unwrap();
        assert!(site_address.of("127.0.0.1").await.is_ok());
        assert_eq!(asked.lock().unwrap().len(), 2);
    }
}
