//! Decides when the next request to a site may start, and whether the crawl must end.
//!
//! This module is pure: the caller passes the time and the random numbers. The module decides when
//! each request of a crawl may start, including requests for robots.txt, and counts every response.
//! In addition, requests are sequential: each waits for the previous response.
//!
//! Two requests start at least the interval apart (`request_interval`). A crawl pauses after a 429
//! or 503 response (`pauses`), and after many errors in a short time. Too many consecutive errors
//! open the breaker, which ends the crawl. No rule reduces the time between two requests below the
//! interval.

pub(super) use pauses::{BREAKER, ResponseKind};
pub(super) use request_interval::Politeness;

pub use request_interval::RateState;

pub(super) mod page_directives;
pub(super) mod path_filter;
pub(super) mod pauses;
pub(super) mod request_interval;
pub(super) mod robots_fetch;
#[cfg(test)]
mod robots_published;
pub(super) mod robots_rules;
