//! Serves gRPC and the dashboard's pages on one port, until the scheduler shuts down, and passes each
//! request through the gate, which refuses requests that the caller may not make.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use landfall_proto::v1::agent_service_server::{self, AgentServiceServer};
use landfall_proto::v1::embedding_service_server::{self, EmbeddingServiceServer};
use landfall_proto::v1::event_service_server::{self, EventServiceServer};
use landfall_proto::v1::fleet_service_server::{self, FleetServiceServer};
use landfall_proto::v1::report_service_server::{self, ReportServiceServer};
use landfall_proto::v1::site_service_server::{self, SiteServiceServer};
use landfall_proto::v1::status_service_server::{self, StatusServiceServer};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::agent_session::{AgentDesk, MAX_AGENT_MESSAGE};
use super::auth::{self, AllowedCallers};
use super::errors;
use super::listener::listen;
use super::operator::services::OperatorServices;
use super::operator::settings::Identity;
use super::port::connections::Connection;
use super::port::refusals::Refused;
use super::responses::{deadline, finished, in_time};
use crate::Scheduler;
use crate::wake::DatabaseState;

/// Maximum time that a shutdown waits for streams to end.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);

/// Maximum size in bytes of an operator's request. This is enough for ten thousand names of maximum
/// length.
const MAX_MESSAGE: usize = 4 << 20;
/// Maximum size in bytes of a request to a service whose requests are all short.
const MAX_SHORT_MESSAGE: usize = 64 << 10;
/// Maximum size in bytes of a request that needs no secret: an enrolment token, or the name of a
/// service.
const MAX_OPEN_BODY: usize = 4 << 10;
/// Maximum time until a whole request that needs no secret has arrived.
const OPEN_BODY_PATIENCE: Duration = Duration::from_secs(10);

/// The services whose state the health service reports separately.
const SERVICES: [&str; 7] = [
    agent_service_server::SERVICE_NAME,
    embedding_service_server::SERVICE_NAME,
    event_service_server::SERVICE_NAME,
    fleet_service_server::SERVICE_NAME,
    report_service_server::SERVICE_NAME,
    site_service_server::SERVICE_NAME,
    status_service_server::SERVICE_NAME,
];

/// Serves until `shutdown`, then waits a few seconds for streams to end. `pages` makes the routes of
/// the dashboard, which calls the operators' services in this process.
pub(crate) async fn serve(
    scheduler: Scheduler,
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    identity: Identity,
    pages: impl FnOnce(OperatorServices) -> Router,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let sessions = TaskTracker::new();
    let agents = AgentServiceServer::new(AgentDesk::new(scheduler.clone(), sessions.clone(), shutdown.child_token()))
        .max_decoding_message_size(MAX_AGENT_MESSAGE);
    let (health, health_service) = tonic_health::server::health_reporter();
    let health = tell_health(health, scheduler.wakes.database.watched());
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(landfall_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .context("read the descriptors of the services")?;

    let operators = OperatorServices::new(scheduler.clone(), identity, shutdown.child_token());
    let mut services = Routes::builder();
    services
        .add_service(health_service)
        .add_service(reflection)
        .add_service(agents)
        .add_service(EmbeddingServiceServer::new(operators.clone()).max_decoding_message_size(MAX_SHORT_MESSAGE))
        .add_service(EventServiceServer::new(operators.clone()).max_decoding_message_size(MAX_SHORT_MESSAGE))
        .add_service(FleetServiceServer::new(operators.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(ReportServiceServer::new(operators.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(SiteServiceServer::new(operators.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(StatusServiceServer::new(operators.clone()).max_decoding_message_size(MAX_SHORT_MESSAGE));
    let port = Arc::clone(&scheduler.port);
    // The gate is added after all routes and fallbacks, so that every request passes through it.
    let routes =
        services.routes().into_axum_router().merge(pages(operators)).layer(from_fn_with_state(scheduler, gate));
    let drained = async {
        shutdown.cancelled().await;
        tokio::time::sleep(SHUTDOWN_WAIT).await;
    };
    tokio::select! {
        () = listen(listener, tls, routes, port, shutdown.clone()) => {}
        () = drained => tracing::warn!("some streams did not end in time"),
        never = health => match never {},
    }
    sessions.close();
    if tokio::time::timeout(SHUTDOWN_WAIT, sessions.wait()).await.is_err() {
        tracing::warn!("some sessions did not end in time");
    }
    Ok(())
}

/// Keeps the health of every service, and of the server as a whole, that of the database.
async fn tell_health(health: HealthReporter, mut database: watch::Receiver<DatabaseState>) -> Infallible {
    loop {
        let state = *database.borrow_and_update();
        let serving = if state == DatabaseState::Answers { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in SERVICES.into_iter().chain([""]) {
            health.set_service_status(service, serving).await;
        }
        if database.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Passes a request on to its service or page if its caller may make it; otherwise answers the
/// request itself.
async fn gate(State(scheduler): State<Scheduler>, mut request: Request, next: Next) -> Response {
    let is_page = auth::is_page(request.uri().path());
    let connection = request.extensions().get::<Connection>().cloned();
    let mut call = match connection.as_ref().map(Connection::call).transpose() {
        Ok(call) => call.flatten(),
        Err(_too_many) if is_page => return StatusCode::TOO_MANY_REQUESTS.into_response(),
        Err(_too_many) => return errors::crowded().into_http(),
    };
    if is_page {
        // The dashboard checks its requests itself, and answers refused requests with pages.
        return finished(next.run(request).await, call);
    }
    let deadline = deadline(request.headers());
    let answering = async {
        match admit(&scheduler, &mut request).await {
            Ok(AllowedCallers::Anybody) => {}
            Ok(AllowedCallers::Agents | AllowedCallers::Operator) => {
                connection.iter().for_each(Connection::vouch);
                call = None;
            }
            Err(refused) => return refused.into_http(),
        }
        next.run(request).await
    };
    let answering = async {
        let answered = scheduler.wakes.database.while_it_answers(answering).await;
        answered.unwrap_or_else(|| errors::away().into_http())
    };
    let answer = in_time(deadline, answering).await;
    finished(answer, call)
}

/// Checks the caller of an rpc, and stores the caller in the request's extensions. Returns who may
/// make this call.
async fn admit(
    Scheduler { db, operators, port, .. }: &Scheduler,
    request: &mut Request,
) -> Result<AllowedCallers, Status> {
    let callers = AllowedCallers::of(request.uri().path());
    if callers == AllowedCallers::Anybody {
        *request.body_mut() = open_body(request).await.inspect_err(|_| {
            port.refusals.note(Refused::Body, auth::peer(request.extensions()));
        })?;
        return Ok(callers);
    }
    // The secret is parsed before any query, so that unauthenticated callers cause no database
    // work.
    let presented = auth::presented(request.headers())?;
    let peer = auth::peer(request.extensions());
    if callers == AllowedCallers::Operator {
        let looking_up = async { auth::operator(&mut *operators.read("check operator token").await?, presented).await };
        let operator = port.guesses.check(Refused::OperatorToken, peer, &presented, looking_up).await?;
        request.extensions_mut().insert(operator);
    } else {
        let credential = auth::Credential(presented);
        let looking_up = async { credential.agent(&mut *db.read("check credential").await?).await };
        let holder = port.guesses.check(Refused::Credential, peer, &presented, looking_up).await?;
        request.extensions_mut().insert(auth::Agent { holder, credential });
    }
    Ok(callers)
}

/// Reads the whole body of a request that needs no secret. Therefore a stranger's call takes little
/// memory, and ends even if its request does not.
async fn open_body(request: &mut Request) -> Result<Body, Status> {
    let body = std::mem::take(request.body_mut());
    match timeout(OPEN_BODY_PATIENCE, to_bytes(body, MAX_OPEN_BODY)).await {
        Ok(Ok(bytes)) => Ok(bytes.into()),
        Ok(Err(_)) => Err(errors::oversized(MAX_OPEN_BODY)),
        Err(_) => Err(errors::unfinished()),
    }
}
