//! Where a crawl sends its requests: one address of its site's, which its permit names.
//!
//! The sites at one address share a budget that the scheduler keeps over all agents, so a crawl asks before it connects, and then stays
//! there: it asks again only where the name has come to lead elsewhere, or where nothing answers and there is another address. What it
//! has is never given back while it crawls. A crawl by hand has nobody to ask.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::alone::Alone;
use crate::context::Context;
use crate::dns::{DnsError, Resolver};
use crate::guard::{Guard, ResolveError};

/// Asks whether requests may be sent to an address; the answer may take as long as the scheduler is away.
pub type Ask = Arc<dyn Fn(IpAddr) -> BoxFuture<'static, Result<(), NotPermitted>> + Send + Sync>;

/// The address bears no further crawl.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotPermitted(pub String);

/// Who is asked, and whether they are still heard of.
#[derive(Clone, Default)]
pub struct Permits {
    ask: Option<Ask>,
    alone: Alone,
}

impl Permits {
    /// A scheduler, by this.
    pub const fn asked(ask: Ask, alone: Alone) -> Self {
        Self { ask: Some(ask), alone }
    }

    /// Whether there is somebody to whom the crawl can go back.
    pub(super) const fn are_asked(&self) -> bool {
        self.ask.is_some()
    }

    async fn of(&self, address: IpAddr) -> Result<(), NotPermitted> {
        match &self.ask {
            Some(ask) => ask(address).await,
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permits").field("asked", &self.are_asked()).finish()
    }
}

/// Why a host has no address to connect to.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlaceError {
    /// None that may be connected.
    #[error(transparent)]
    Resolve(ResolveError),
    /// None in time.
    #[error("{host}: no address within {limit:?}")]
    Timeout {
        /// The host.
        host: String,
        /// How long.
        limit: Duration,
    },
    /// It bears no further crawl.
    #[error(transparent)]
    NotPermitted(NotPermitted),
}

/// The one address of a crawl.
pub(super) struct Place {
    guard: Guard,
    resolver: Resolver,
    permits: Permits,
    limit: Duration,
    at: Mutex<At>,
}

#[derive(Default)]
struct At {
    /// The site's, as it was asked for last.
    host: String,
    /// What is permitted.
    held: Option<IpAddr>,
    /// Where nothing answered the last time.
    silent: Option<IpAddr>,
}

impl Place {
    /// Nowhere yet; a name may take `limit` to resolve.
    pub(super) fn new(context: &Context, permits: Permits, limit: Duration) -> Self {
        Self { guard: context.guard.clone(), resolver: context.resolver.clone(), permits, limit, at: Mutex::default() }
    }

    /// Whether the crawl is on its own.
    pub(super) fn is_alone(&self) -> bool {
        self.permits.alone.is_so()
    }

    /// The address to connect for a host: vetted, and permitted.
    ///
    /// # Errors
    /// When there is none.
    pub(super) async fn of(&self, host: &str) -> Result<IpAddr, PlaceError> {
        let found = timeout(self.limit, self.guard.resolve(&self.resolver, host)).await;
        let late = |_| PlaceError::Timeout { host: host.to_owned(), limit: self.limit };
        let found = found.map_err(late)?.map_err(PlaceError::Resolve)?;
        let mut at = self.at.lock().await;
        host.clone_into(&mut at.host);
        let (held, silent) = (at.held, at.silent);
        let answers = |address: &&IpAddr| Some(**address) != silent;
        let first = found.iter().find(answers).or(found.first());
        let next = found.iter().filter(answers).find(|address| Some(**address) == held).or(first);
        // The guard gives at least one, or says why not.
        let Some(next) = next.copied() else {
            return Err(PlaceError::Resolve(ResolveError::Dns(DnsError::NotFound(host.to_owned()))));
        };
        if held != Some(next) {
            self.permits.of(next).await.map_err(PlaceError::NotPermitted)?;
            at.held = Some(next);
        }
        Ok(next)
    }

    /// Whether this is the host that the place is for. Others, to which a robots.txt may redirect, are no part of the site.
    pub(super) async fn is_for(&self, host: &str) -> bool {
        self.at.lock().await.host == host
    }

    /// Nothing answers there: another address is next, if there is one.
    pub(super) async fn is_silent(&self) {
        let mut at = self.at.lock().await;
        at.silent = at.held;
    }
}
