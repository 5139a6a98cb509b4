//! The dashboard's data as JSON. The data are read-only, and their paths never change.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
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

use crate::store;

use super::Web;
use super::error::PageError;
use super::form::Form;
use super::pages::map;

/// Maximum number of epochs, and maximum number of batches, in a response.
const MOST: u32 = 1_000;

pub(super) struct Json(String);

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}

pub(super) fn router() -> Router<Web> {
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

/// An error as a JSON document.
pub(super) fn failure(error: &PageError) -> Response {
    #[derive(Serialize)]
    struct Failure<'a> {
        error: &'a str,
    }
    let text = serde_json::to_string(&Failure { error: error.message() }).unwrap_or_default();
    (error.code(), Json(text)).into_response()
}

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
    json(web.desks.status.show_status(Request::new(ShowStatusRequest { batches: 0 })).await?.get_ref())
}

async fn agents(State(web): State<Web>) -> ApiAnswer {
    json(&web.desks.fleet.list_agents(Request::new(ListAgentsRequest::default())).await?.get_ref().agents)
}

async fn landmarks(State(web): State<Web>) -> ApiAnswer {
    json(&web.desks.fleet.list_landmarks(Request::new(ListLandmarksRequest::default())).await?.get_ref().landmarks)
}

async fn batches(State(web): State<Web>) -> ApiAnswer {
    let request = ListBatchesRequest { limit: MOST.into(), ..ListBatchesRequest::default() };
    json(&web.desks.sites.list_batches(Request::new(request)).await?.get_ref().batches)
}

async fn throughput(State(web): State<Web>, Path(name): Path<String>) -> ApiAnswer {
    json(&super::pages::trends::minutes(&web, Some(&name)).await?)
}

async fn circuits(State(web): State<Web>) -> ApiAnswer {
    json(
        &web.desks.sites.list_open_circuits(Request::new(ListOpenCircuitsRequest::default())).await?.get_ref().circuits,
    )
}

async fn explanation(State(web): State<Web>, uri: Uri) -> ApiAnswer {
    let site = Form::of_query(&uri).field("site").to_owned();
    let request = ExplainRequest { site, ..ExplainRequest::default() };
    json(web.desks.sites.explain(Request::new(request)).await?.get_ref())
}

async fn embedding(State(web): State<Web>) -> ApiAnswer {
    json(web.desks.embeddings.show_embedding(Request::new(ShowEmbeddingRequest {})).await?.get_ref())
}

async fn epochs(State(web): State<Web>) -> ApiAnswer {
    json(&web.desks.embeddings.list_epochs(Request::new(ListEpochsRequest { limit: MOST })).await?.get_ref().epochs)
}

async fn map(State(web): State<Web>, uri: Uri) -> ApiAnswer {
    json(&map::read(&web, Form::of_query(&uri).field("epoch")).await?)
}

/// Reports whether this scheduler can use the database.
pub(super) async fn ready(State(web): State<Web>) -> Result<&'static str, PageError> {
    drop(store::acquire(&web.scheduler.pool).await?);
    Ok("ready\n")
}
