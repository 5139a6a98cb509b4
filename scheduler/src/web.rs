//! The dashboard: pages for browsers, and the same data as JSON, on the same port as the
//! gRPC services.
//!
//! Handlers call the operators' services in this process, so a page shows the same data as a
//! command. Every request passes [`access::admit`], which decides who may see a page and who may
//! change something.

mod access;
mod api;
mod assets;
mod elements;
mod error;
mod form;
mod live;
mod metrics;
mod page_cache;
mod page_frame;
mod page_name;
mod pages;
mod routes;
mod sign_in;
mod state;

pub(crate) use routes::router;
pub(crate) use state::Web;
