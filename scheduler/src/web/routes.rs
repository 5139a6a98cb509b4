//! Assigns every path of the dashboard to its handler. Each request first passes
//! [`admit`](super::access::admit).

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{get, post};

use super::access::admit;
use super::error::PageError;
use super::live::{self, Live};
use super::metrics::{self, Scrapes};
use super::pages::{self, buttons};
use super::state::Web;
use super::{api, assets, sign_in};

/// The routes of all pages. The first segment of a path never contains a dot, because a path whose
/// first segment has a dot belongs to a gRPC service.
pub(crate) fn router(web: Web) -> Router {
    Router::new()
        .route("/", get(pages::show))
        .route("/map", get(pages::show))
        .route("/fleet", get(pages::show))
        .route("/agents/{name}", get(pages::show))
        .route("/agents/{name}/{action}", post(buttons::agent))
        .route("/batches", get(pages::show))
        .route("/batches/{name}", get(pages::show))
        .route("/batches/{name}/{action}", post(buttons::batch))
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
        .route("/{*path}", get(|| async { PageError::unknown().into_response() }))
        .layer(from_fn_with_state(web.clone(), admit))
        .with_state(web)
}
