//! Makes the HTTP client of a crawl: the headers of its requests, and what it leaves out (retries,
//! redirects, proxies).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderValue, USER_AGENT};

use super::coding;
use super::connect_delay::ConnectDelay;
use super::header_limits::MAX_HEADER_FIELDS;
use super::resolver::GuardedResolver;
use super::site_address::SiteAddress;
use super::timeouts::Timeouts;
use crate::net::request_context::RequestContext;

/// Number of bytes that an HTTP/2 server may send before the client reads them. The library's
/// default is 5 MiB for each crawl, and would take half of an agent's memory.
const HTTP2_WINDOW: u32 = 256 << 10;
/// Maximum header size that the library accepts for HTTP/2. This maximum exceeds the crawler's own
/// limit, so that the crawler can distinguish an oversized header from a malformed one. For
/// HTTP/1.1 the library's limit is fixed at 408 KiB; only the number of fields is configurable.
const HTTP2_HEADER_BYTES: u32 = 256 << 10;

#[derive(Debug, thiserror::Error)]
#[error("make an HTTP client")]
pub(in crate::crawl) struct NoClient(#[source] reqwest::Error);

pub(super) fn client(
    context: &RequestContext,
    timeouts: Timeouts,
    site_address: &Arc<SiteAddress>,
    resolving: &Arc<AtomicBool>,
    connect_delay: &ConnectDelay,
) -> Result<reqwest::Client, NoClient> {
    let mut tls = (*context.tls).clone();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let headers = request_headers(context);
    let resolver = GuardedResolver {
        guard: context.guard.clone(),
        resolver: context.resolver.clone(),
        site_address: Arc::clone(site_address),
        resolving: Arc::clone(resolving),
    };
    reqwest::Client::builder()
        .default_headers(headers)
        .tls_backend_preconfigured(tls)
        .dns_resolver(resolver)
        .local_address(context.bind)
        .connect_timeout(timeouts.connect)
        .redirect(reqwest::redirect::Policy::none())
        // By default the library retries some failed requests. The crawler could neither delay nor
        // count these retries.
        .retry(reqwest::retry::never())
        .no_proxy()
        .referer(false)
        .pool_max_idle_per_host(1)
        .connector_layer(connect_delay.clone())
        .http2_initial_stream_window_size(HTTP2_WINDOW)
        .http2_initial_connection_window_size(HTTP2_WINDOW)
        .http2_max_header_list_size(HTTP2_HEADER_BYTES)
        .http1_max_headers(MAX_HEADER_FIELDS)
        .build()
        .map_err(NoClient)
}

pub(super) fn request_headers(context: &RequestContext) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, context.user_agent.header().clone());
    headers.insert(ACCEPT, HeaderValue::from_static("text/html,*/*;q=0.5"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(coding::ACCEPTED));
    headers
}
