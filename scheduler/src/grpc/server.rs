//! Serves gRPC and the dashboard's pages on one port, until the scheduler shuts down.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use futures_util::{FutureExt, TryStreamExt as _};
use landfall_proto::v1::agent_service_server::AgentServiceServer;
use landfall_proto::v1::{
    agent_service_server, embedding_service_server, event_service_server, fleet_service_server, report_service_server,
    site_service_server, status_service_server,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tower::layer::layer_fn;

use super::agent_session::{AgentDesk, MAX_AGENT_MESSAGE};
use super::first_bytes::FirstBytes;
use super::gate::Gate;
use super::identity::Identity;
use super::operator::embeddings::EmbeddingDesk;
use super::operator::events::EventDesk;
use super::operator::fleet::FleetDesk;
use super::operator::reports::ReportDesk;
use super::operator::sites::SiteDesk;
use super::operator::status::StatusDesk;
use super::tls_handshakes::over_tls;
use crate::Scheduler;

/// A connection is considered dead if the peer does not respond within the interval plus the
/// time-out.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that a shutdown waits for streams to end.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);

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

/// The operators' services. The dashboard, which runs in this process, calls them too.
#[derive(Debug, Clone)]
pub(crate) struct Desks {
    pub(crate) sites: SiteDesk,
    pub(crate) status: StatusDesk,
    pub(crate) fleet: FleetDesk,
    pub(crate) embeddings: EmbeddingDesk,
    pub(crate) events: EventDesk,
    pub(crate) reports: ReportDesk,
}

impl Desks {
    /// Creates the services, whose streams end with `shutdown`. Agents that enrol get `identity`,
    /// with which they find and recognise the scheduler.
    fn new(scheduler: &Scheduler, identity: &Identity, shutdown: &CancellationToken) -> Self {
        Self {
            sites: SiteDesk::new(scheduler.clone(), shutdown.child_token()),
            status: StatusDesk::new(scheduler.clone(), identity),
            fleet: FleetDesk::new(scheduler.clone(), identity.clone()),
            embeddings: EmbeddingDesk::new(scheduler.clone()),
            events: EventDesk::new(scheduler.clone(), shutdown.child_token()),
            reports: ReportDesk::new(scheduler.clone()),
        }
    }
}

/// Serves until `shutdown`, then waits a few seconds for streams to end. `pages` makes the routes of
/// the dashboard, which calls the operators' services in this process.
pub(crate) async fn serve(
    scheduler: Scheduler,
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    identity: Identity,
    pages: impl FnOnce(Desks) -> Router,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let sessions = TaskTracker::new();
    let agents = AgentServiceServer::new(AgentDesk::new(scheduler.clone(), sessions.clone(), shutdown.child_token()))
        .max_decoding_message_size(MAX_AGENT_MESSAGE);
    let (health, health_service) = tonic_health::server::health_reporter();
    for service in SERVICES {
        health.set_service_status(service, ServingStatus::Serving).await;
    }
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(landfall_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .context("read the descriptors of the services")?;

    // TCP_NODELAY is set here because the server builder's setting does not affect a listener
    // passed to it. Without TCP_NODELAY, an order after an acknowledgement waits 40 ms for the
    // agent's delayed ACK.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let desks = Desks::new(&scheduler, &identity, &shutdown);
    let mut services = Routes::builder();
    services.add_service(health_service).add_service(reflection).add_service(agents);
    services.add_service(desks.sites.clone().server()).add_service(desks.status.clone().server());
    services.add_service(desks.fleet.clone().server()).add_service(desks.embeddings.clone().server());
    services.add_service(desks.events.clone().server()).add_service(desks.reports.clone().server());
    let served = Server::builder()
        .accept_http1(true)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .layer(layer_fn(move |within| Gate::new(within, scheduler.clone())))
        .add_routes(services.routes().into_axum_router().merge(pages(desks)).into());
    let stopped = shutdown.clone().cancelled_owned();
    let served = match tls {
        Some(tls) => {
            let shaken = over_tls(incoming, tls).map_ok(FirstBytes::of);
            served.serve_with_incoming_shutdown(shaken, stopped).boxed()
        }
        None => served.serve_with_incoming_shutdown(incoming.map_ok(FirstBytes::of), stopped).boxed(),
    };
    let drained = async {
        shutdown.cancelled().await;
        tokio::time::sleep(SHUTDOWN_WAIT).await;
    };
    tokio::select! {
        served = served => served.context("serve gRPC")?,
        () = drained => tracing::warn!("some streams did not end in time"),
    }
    sessions.close();
    if tokio::time::timeout(SHUTDOWN_WAIT, sessions.wait()).await.is_err() {
        tracing::warn!("some sessions did not end in time");
    }
    Ok(())
}
