//! The dashboard: pages for browsers, and the same data as JSON, on the same port as the
//! gRPC services.
//!
//! Handlers call the operators' services in this process, so a page shows the same data as a
//! command. Every request passes [`access::admit`], which decides who may see a page and who may
//! change something.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::Scheduler;
use crate::grpc::operator::Desks;

use self::live::Hub;
use self::metrics::Scrape;
use self::page_cache::KeptPages;
use self::pages::map::EpochErrors;

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
mod pages;
mod sign_in;

/// The data that all handlers share. Clones are cheap.
#[derive(Debug, Clone)]
pub(crate) struct Web {
    scheduler: Scheduler,
    desks: Desks,
    /// Whether browsers connect over TLS. Without TLS, the scheduler listens on loopback only.
    tls: bool,
    hub: Arc<Hub>,
    kept: Arc<KeptPages>,
    /// The text of the newest scrape of the metrics.
    scrape: Arc<Mutex<Option<Scrape>>>,
    /// The most recently computed errors of the map.
    map_errors: Arc<Mutex<Option<EpochErrors>>>,
    shutdown: CancellationToken,
}

impl Web {
    pub(crate) fn new(scheduler: Scheduler, desks: Desks, tls: bool, shutdown: CancellationToken) -> Self {
        Self {
            scheduler,
            desks,
            tls,
            hub: Arc::default(),
            kept: Arc::default(),
            scrape: Arc::default(),
            map_errors: Arc::default(),
            shutdown,
        }
    }
}

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
        .route("/live", get(live::follow))
        .route("/static/{file}", get(assets::serve))
        .route("/health/live", get(|| async { "live\n" }))
        .route("/health/ready", get(api::ready))
        .route("/metrics", get(metrics::scrape))
        .nest("/api/v1", api::router())
        .route("/{*path}", get(|| async { error::PageError::unknown().into_response() }))
        .layer(from_fn_with_state(web.clone(), access::admit))
        .with_state(web)
}
