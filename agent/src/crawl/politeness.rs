//! Decides when the next request to a site may start, and whether the crawl must end.
//!
//! This module is pure: the caller passes the time and the random numbers. The module decides when
//! each request of a crawl may start, including requests for robots.txt, and counts every response.
//! In addition, requests are sequential: each waits for the previous response.
//!
//! Two requests start at least the interval apart (`request_interval`). A crawl pauses after a 429
//! or 503 response (`refusal_pause`), and after many errors in a short time (`error_window`). Too
//! many consecutive errors open the breaker (`circuit_breaker`), which ends the crawl. No rule
//! reduces the time between two requests below the interval.

pub(super) use circuit_breaker::BREAKER;
pub use next_request::RateState;
pub(super) use next_request::{Politeness, PolitenessState};
pub(super) use response_kind::ResponseKind;

mod circuit_breaker;
mod error_window;
mod next_request;
pub(super) mod path_filter;
pub(super) mod pattern;
mod pause;
pub(super) mod refusal_pause;
mod request_interval;
mod response_kind;
pub(super) mod robots;
pub(super) mod scheduler_silence;
