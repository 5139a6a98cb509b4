//! Assigns every path of the dashboard to its handler. Serves the dashboard's data as JSON, which
//! are read-only and whose paths never change, and the style sheet and script, which are part of
//! the program. Each request first passes [`admit`].

use std::sync::LazyLock;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use landfall_proto::v1::embedding_service_server::EmbeddingService as _;
use landfall_proto::v1::fleet_service_server::FleetService as _;
use landfall_proto::v1::site_service_server::SiteService as _;
use landfall_proto::v1::status_service_server::StatusService as _;
use landfall_proto::v1::{
    ExplainRequest, ListAgentsRequest, ListBatchesRequest, ListEpochsRequest, ListLandmarksRequest,
    ListOpenCircuitsRequest, ShowEmbeddingRequest, ShowStatusRequest,
};
use serde::Serialize;
use serde_json::Value;
use tonic::Request;

use super::access_and_sign_in::{self, admit};
use super::live_pages::{self, Live};
use super::page_layout::{Form, Json, PageError, failure};
use super::pages::map::read;
use super::pages::{agents, batches_and_sites, overview_and_trends};
use super::{Web, metrics};
use crate::grpc::operator;

/// The routes of all pages. The first segment of a path never contains a dot, because a path whose
/// first segment has a dot belongs to a gRPC service.
pub(crate) fn router(web: Web) -> Router {
    Router::new()
        .route("/", get(live_pages::show))
        .route("/map", get(live_pages::show))
        .route("/fleet", get(live_pages::show))
        .route("/agents/{name}", get(live_pages::show))
        .route("/agents/{name}/{action}", post(agents::act_on_agent))
        .route("/batches", get(live_pages::show))
        .route("/batches/{name}", get(live_pages::show))
        .route("/batches/{name}/{action}", post(batches_and_sites::act_on_batch))
        .route("/site", get(live_pages::show))
        .route("/trends", get(live_pages::show))
        .route("/sign-in", get(access_and_sign_in::sign_in_form).post(access_and_sign_in::sign_in))
        .route("/sign-out", post(access_and_sign_in::sign_out))
        .route("/live", get(live_pages::follow).with_state(Live::new(web.clone())))
        .route("/static/{file}", get(static_file))
        .route("/health/live", get(|| async { "live\n" }))
        .route("/health/ready", get(ready))
        .route("/metrics", get(metrics::scrape))
        .nest("/api/v1", api_router())
        .route("/{*path}", get(|| async { PageError::unknown().into_response() }))
        .layer(from_fn_with_state(web.clone(), admit))
        .with_state(web)
}

fn api_router() -> Router<Web> {
    Router::new()
        .route("/status", get(status))
        .route("/agents", get(agents))
        .route("/landmarks", get(landmarks))
        .route("/batches", get(batches))
        .route("/batches/{name}/throughput", get(throughput))
        .route("/circuits", get(circuits))
        .route("/explanation", get(explanation))
        .route("/embedding", get(embedding))
        .route("/epochs", get(epochs))
        .route("/map", get(map))
        .route("/{*path}", get(|| async { ApiError(PageError::unknown()) }))
        .route("/openapi.json", get(|| async { ([(CONTENT_TYPE, "application/json")], DESCRIPTION.as_str()) }))
}

/// The OpenAPI description. It uses the schemas of the JSON that commands print.
static DESCRIPTION: LazyLock<String> = LazyLock::new(|| {
    let parse = |text| serde_json::from_str::<Value>(text).expect("the compiled text is JSON");
    let mut description = parse(include_str!("assets/openapi.json"));
    let mut schemas = parse(include_str!("../../../docs/reference/json-schemas.json"));
    description["components"]["schemas"] = schemas["$defs"].take();
    description.to_string()
});

struct ApiError(PageError);

impl<E: Into<PageError>> From<E> for ApiError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        failure(&self.0)
    }
}

type ApiAnswer = Result<Json, ApiError>;

fn json(value: &impl Serialize) -> ApiAnswer {
    let text = serde_json::to_string(value);
    Ok(Json(text.map_err(|error| PageError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?))
}

async fn status(State(web): State<Web>) -> ApiAnswer {
    json(web.services.show_status(Request::new(ShowStatusRequest { batches: 0 })).await?.get_ref())
}

async fn agents(State(web): State<Web>) -> ApiAnswer {
    json(&web.services.list_agents(Request::new(ListAgentsRequest::default())).await?.get_ref().agents)
}

async fn landmarks(State(web): State<Web>) -> ApiAnswer {
    json(&web.services.list_landmarks(Request::new(ListLandmarksRequest::default())).await?.get_ref().landmarks)
}

async fn batches(State(web): State<Web>) -> ApiAnswer {
    json(&web.services.list_batches(Request::new(ListBatchesRequest::default())).await?.get_ref().batches)
}

async fn throughput(State(web): State<Web>, Path(name): Path<String>) -> ApiAnswer {
    json(&overview_and_trends::minutes(&web, Some(&name)).await?)
}

async fn circuits(State(web): State<Web>) -> ApiAnswer {
    json(&web.services.list_open_circuits(Request::new(ListOpenCircuitsRequest::default())).await?.get_ref().circuits)
}

async fn explanation(State(web): State<Web>, uri: Uri) -> ApiAnswer {
    let site = Form::of_query(&uri).field("site").to_owned();
    let request = ExplainRequest { site, ..ExplainRequest::default() };
    json(web.services.explain(Request::new(request)).await?.get_ref())
}

async fn embedding(State(web): State<Web>) -> ApiAnswer {
    json(web.services.show_embedding(Request::new(ShowEmbeddingRequest {})).await?.get_ref())
}

async fn epochs(State(web): State<Web>) -> ApiAnswer {
    json(&web.services.list_epochs(Request::new(ListEpochsRequest::default())).await?.get_ref().epochs)
}

async fn map(State(web): State<Web>, uri: Uri) -> ApiAnswer {
    json(&read(&web, Form::of_query(&uri).field("epoch")).await?)
}

/// Reports whether this scheduler can use the database, and change it.
pub(super) async fn ready(State(web): State<Web>) -> Result<&'static str, PageError> {
    operator::ready(&web.scheduler).await?;
    Ok("ready\n")
}

const FILES: [(&str, &str, &str); 3] = [
    (
        "style.css",
        "text/css; charset=utf-8",
        concat!(include_str!("../plot/style.css"), include_str!("assets/style.css")),
    ),
    ("live.js", "text/javascript; charset=utf-8", include_str!("assets/live.js")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

async fn static_file(Path(file): Path<String>) -> Response {
    match FILES.iter().find(|(name, ..)| *name == file) {
        // Browsers must ask the server each time whether a cached file is still valid, because
        // another version of the program may have different files.
        Some((_, kind, text)) => {
            (StatusCode::OK, [(CONTENT_TYPE, *kind), (CACHE_CONTROL, "no-cache")], *text).into_response()
        }
        None => PageError::unknown().into_response(),
    }
}
