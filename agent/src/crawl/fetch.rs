//! Sends a crawl's requests one at a time, only when `crawl::politeness` permits, and only to
//! vetted addresses. Limits the time and the size of the responses.
//!
//! No other part of the crawler uses the network. The HTTP client resolves names only through
//! `site_address`, so it connects to a vetted address and no name is resolved a second time.
//! The client does not ask the resolver about IP literals, so the fetcher vets them before the
//! request. The client uses no proxy and no cookies, and returns redirects as responses instead of
//! following them.
//!
//! Each crawl has its own client, so its connections end with the crawl, and a slow site can
//! exhaust only its own connection pool. All crawls share the trust anchors.

pub(super) use requests::Fetcher;
pub(super) use response::{CrawlResponse, Timeouts};

#[cfg(test)]
pub(super) use response::WINDOWS;

mod brotli;
mod content_encoding;
pub(super) mod failure_cause;
mod requests;
mod response;
pub(super) mod site_address;
