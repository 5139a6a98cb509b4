//! Makes contexts that may connect to private networks.

use crate::net::dns::Resolver;
use crate::net::guard::Guard;
use crate::net::request_context::RequestContext;
use crate::net::tls::tls_config;
use crate::net::user_agent::UserAgent;

/// A context that may connect to these networks. The context resolves no names: its name server is
/// on the discard port, where no server listens.
pub(crate) fn context(allow_net: &[&str]) -> RequestContext {
    RequestContext {
        guard: Guard::new(allow_net.iter().map(|net| net.parse().unwrap()).collect()),
        resolver: Resolver::new("127.0.0.1:9".parse().ok()).unwrap(),
        user_agent: UserAgent::new("https://example.org/crawler").unwrap(),
        bind: None,
        tls: tls_config(None).unwrap(),
    }
}
