//! The dashboard: pages for browsers, and the same data as JSON, on the same port as the
//! gRPC services.
//!
//! Handlers call the operators' services in this process, so a page shows the same data as a
//! command. Every request passes [`access_and_sign_in::admit`], which decides who may see a page and
//! who may change something.

mod access_and_sign_in;
mod live_pages;
mod metrics;
mod page_layout;
mod page_names_and_cache;
mod pages;
mod routes_and_api;

pub(crate) use page_names_and_cache::Web;
pub(crate) use routes_and_api::router;
