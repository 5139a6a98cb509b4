//! Everything needed to send a request: the guard, name resolution, the site's origin, TLS and the
//! user agent.

pub(crate) mod age_ordered_map;
pub mod dns;
pub mod guard;
pub mod origin;
pub mod request_context;
pub mod user_agent;
