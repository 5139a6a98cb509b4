//! Serves gRPC and the dashboard's pages on one port, until the scheduler shuts down: makes TLS
//! handshakes, closes connections that do not begin a request in time, and passes each request
//! through the gate, which refuses requests that the caller may not make.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use futures_util::{FutureExt, Stream, StreamExt, TryStreamExt as _};
use landfall_proto::v1::agent_service_server::{self, AgentServiceServer};
use landfall_proto::v1::embedding_service_server::{self, EmbeddingServiceServer};
use landfall_proto::v1::event_service_server::{self, EventServiceServer};
use landfall_proto::v1::fleet_service_server::{self, FleetServiceServer};
use landfall_proto::v1::report_service_server::{self, ReportServiceServer};
use landfall_proto::v1::site_service_server::{self, SiteServiceServer};
use landfall_proto::v1::status_service_server::{self, StatusServiceServer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpIncoming};
use tonic_health::ServingStatus;

use super::agent_session::{AgentDesk, MAX_AGENT_MESSAGE};
use super::auth::{self, AllowedCallers, peer};
use super::errors;
use super::operator::services::OperatorServices;
use super::operator::settings::Identity;
use crate::Scheduler;
use crate::store;

/// A connection is considered dead if the peer does not respond within the interval plus the
/// time-out.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that a shutdown waits for streams to end.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);

/// Maximum size in bytes of an operator's request. This is enough for ten thousand names of maximum
/// length.
const MAX_MESSAGE: usize = 4 << 20;
/// Maximum size in bytes of a request to a service whose requests are all short.
const MAX_SHORT_MESSAGE: usize = 64 << 10;

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
    // The gate is added after all routes and fallbacks, so that every request passes through it.
    let routes =
        services.routes().into_axum_router().merge(pages(operators)).layer(from_fn_with_state(scheduler, gate));
    let served = Server::builder()
        .accept_http1(true)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_routes(routes.into());
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

/// Passes a call on to its service if its caller may make it; otherwise answers the call itself.
async fn gate(State(scheduler): State<Scheduler>, mut request: Request, next: Next) -> Response {
    if auth::is_page(request.uri().path()) {
        // The dashboard checks its requests itself, and answers refused requests with pages.
        return next.run(request).await;
    }
    let answering = async {
        match admit(&scheduler, &mut request).await {
            Ok(()) => next.run(request).await,
            Err(refused) => refused.into_http(),
        }
    };
    let answered = scheduler.wakes.database.while_it_answers(answering).await;
    answered.unwrap_or_else(|| errors::away().into_http())
}

/// Checks the caller of an rpc, and stores the caller in the request's extensions.
async fn admit(Scheduler { pool, wrong_tokens, .. }: &Scheduler, request: &mut Request) -> Result<(), Status> {
    let callers = AllowedCallers::of(request.uri().path());
    if callers == AllowedCallers::Anybody {
        return Ok(());
    }
    // The secret is parsed before any query, so that unauthenticated callers cause no database
    // work.
    let presented = auth::presented(request.headers())?;
    if callers == AllowedCallers::Operator {
        let known = auth::operator(&mut *store::acquire(pool).await?, presented).await;
        match known {
            Ok(operator) => drop(request.extensions_mut().insert(operator)),
            Err(refused) => return Err(wrong_tokens.refuse(refused, peer(request.extensions())).await),
        }
    } else {
        let mut conn = store::acquire(pool).await?;
        let credential = auth::Credential(presented);
        let holder = credential.agent(&mut conn).await?;
        request.extensions_mut().insert(auth::Agent { holder, credential });
    }
    Ok(())
}

/// Maximum time from the opening of the connection, or from the end of the TLS handshake, until the
/// preface is complete.
const PATIENCE: Duration = Duration::from_secs(10);
/// Length of HTTP/2's preface (RFC 9113 section 3.4). No HTTP/1.1 request is shorter, because each
/// contains a `Host` header.
const PREFACE: usize = 24;

/// A connection with a time limit for its first bytes.
#[derive(Debug)]
struct FirstBytes<S> {
    stream: S,
    /// The time limit, and the number of bytes read so far; `None` when enough bytes have arrived.
    begins: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> FirstBytes<S> {
    pub(super) fn of(stream: S) -> Self {
        Self::within(stream, PATIENCE)
    }

    fn within(stream: S, patience: Duration) -> Self {
        Self { stream, begins: Some((Box::pin(sleep(patience)), 0)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstBytes<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, begins } = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(stream).poll_read(context, buffer);
        if let Some((limit, arrived)) = begins {
            *arrived += buffer.filled().len() - before;
            if *arrived >= PREFACE {
                *begins = None;
            } else if read.is_pending() {
                ready!(limit.as_mut().poll(context));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstBytes<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl<S: Connected> Connected for FirstBytes<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

/// Maximum number of concurrent handshakes; further connections wait in the kernel's queue.
const HANDSHAKES: usize = 1024;
/// Maximum duration of one handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections from `accepted` that complete a TLS handshake. Other connections are dropped.
/// The listener's errors are passed on.
pub fn over_tls(
    accepted: impl Stream<Item = io::Result<TcpStream>>,
    config: Arc<ServerConfig>,
) -> impl Stream<Item = io::Result<TlsStream<TcpStream>>> {
    let acceptor = TlsAcceptor::from(config);
    let shaken = accepted.map(move |accepted| {
        let acceptor = acceptor.clone();
        tokio::spawn(async move { io::Result::Ok(handshake(&acceptor, accepted?).await) })
    });
    // If a handshake's async task was dropped or panicked, only that connection is lost.
    shaken.buffer_unordered(HANDSHAKES).filter_map(async |shaken| shaken.ok().and_then(io::Result::transpose))
}

/// Returns `None` if the handshake failed.
async fn handshake(acceptor: &TlsAcceptor, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn half_a_preface_ends_the_connection_and_a_slow_body_does_not() {
        const SHORT: Duration = Duration::from_millis(50);
        let (mut client, server) = duplex(64);
        let mut server = FirstBytes::within(server, SHORT);
        client.write_all(b"PRI * HTTP/2.0").await.unwrap();
        assert_eq!(server.read_to_end(&mut Vec::new()).await.unwrap_err().kind(), io::ErrorKind::TimedOut);

        let (mut client, server) = duplex(64);
        let mut server = FirstBytes::within(server, SHORT);
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut buffer = [0; 64];
        assert!(server.read(&mut buffer).await.unwrap() >= PREFACE);
        assert!(tokio::time::timeout(4 * SHORT, server.read(&mut buffer)).await.is_err(), "it goes on");
    }
}
