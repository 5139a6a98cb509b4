//! The dashboard: pages for browsers, and the same data as JSON, on the same port as the
//! gRPC services.
//!
//! Handlers call the operators' services in this process, so a page shows the same data as a
//! command. Every request passes [`access::admit`], which decides who may see a page and who may
//! change something.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{get, post};

use self::live::Live;
use self::metrics::Scrapes;

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
mod sign_in;
mod state;

pub(crate) use state::Web;

/// The routes of all pages. The first segment of a path never contains a dot, because a path whose
/// first segment has a dot belongs to a gRPC service.
pub(crate) fn router(web: Web) -> Router {
    Router::new()
        .route("/", get(pages::show))
        .route("/map", get(pages::show))
        .route("/fleet", get(pages::show))
        .route("/agents/{name}", get(pages::show))
        .route("/agents/{name}/{action}", post(pages::buttons::agent))
        .route("/batches", get(pages::show))
        .route("/batches/{name}", get(pages::show))
        .route("/batches/{name}/{action}", post(pages::buttons::batch))
        .route("/site", get(pages::show))
        .route("/trends", get(pages::show))
        .route("/sign-in", get(sign_in::form).post(sign_in::sign_in))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/live", get(live::follow).with_state(Live::new(web.clone())))
        .route("/static/{file}", get(assets::serve))
        .route("/health/live", get(|| async { "live\n" }))
        .route("/health/ready", get(api::ready))
        .route("/metrics", get(metrics::scrape).with_state(Scrapes::new(web.desks.clone())))
        .nest("/api/v1", api::router())
        .route("/{*path}", get(|| async { error::PageError::unknown().into_response() }))
        .layer(from_fn_with_state(web.clone(), access::admit))
        .with_state(web)
}
