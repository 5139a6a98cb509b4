//! What an agent has to send requests with before it knows whose user agent they carry.

use std::net::IpAddr;
use std::sync::Arc;

use crate::context::Context;
use crate::crawl::RobotsCache;
use crate::dns::Resolver;
use crate::guard::Guard;
use crate::user_agent::{Product, UserAgent};

/// What a [`Context`] is made of, the user agent aside: that may come with the welcome.
#[derive(Debug, Clone)]
pub struct Means {
    pub guard: Guard,
    pub resolver: Resolver,
    pub bind: Option<IpAddr>,
    pub tls: Arc<rustls::ClientConfig>,
    /// What robots.txt of sites said lately.
    pub robots: Arc<RobotsCache>,
    /// The configured user agent, which goes before the scheduler's.
    pub user_agent: Option<UserAgent>,
}

impl Means {
    /// The context of requests that carry `user_agent`.
    pub fn context(&self, user_agent: UserAgent) -> Context {
        Context {
            guard: self.guard.clone(),
            resolver: self.resolver.clone(),
            user_agent,
            bind: self.bind,
            tls: Arc::clone(&self.tls),
            robots: Arc::clone(&self.robots),
        }
    }

    /// The context of a crawl that may have a contact and a name of its own; `usual`: that of all others.
    pub(super) fn context_of(
        &self,
        usual: Arc<Context>,
        user_agent: Option<UserAgent>,
        product: Option<Product>,
    ) -> Arc<Context> {
        let context = user_agent.map_or(usual, |user_agent| Arc::new(self.context(user_agent)));
        match product {
            Some(product) => Arc::new(context.named(&product)),
            None => context,
        }
    }
}
