//! Resolves names for the HTTP client, which connects only to the addresses returned here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::crawl::fetch::site_address::{AddressError, SiteAddress};
use crate::net::dns::Resolver;
use crate::net::guard::Guard;

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
