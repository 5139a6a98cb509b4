//! Accepts the connections of the port, makes TLS handshakes, and serves HTTP/2 and HTTP/1.1 on each
//! connection in its own async task, within the limits of [`Port`].

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::codegen::Service as _;

use super::port::Port;
use super::port::connections::Connection;
use super::port::refusals::Refused;

/// A connection is considered dead if the peer does not respond within the interval plus the
/// time-out.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum numbers of streams of a connection that were reset by this server because of the
/// client's errors, and by the client before they were handled. A connection with more is closed.
const MAX_ERROR_RESETS: usize = 256;
const MAX_EARLY_RESETS: usize = 20;
/// Number of bytes of a request that a client may send before the request's handler reads them.
/// Strangers can make the scheduler keep as many. At a round trip of 100 ms, this allows 2.5 MB/s.
const STREAM_WINDOW: u32 = 256 << 10;
/// Maximum size of a request's headers in bytes.
const MAX_HEADERS: u32 = 16 << 10;
/// Delays after a failed accept, which usually means that no descriptor is free: the first, which
/// doubles with each further failure, and the longest.
const ACCEPT_RETRY: Duration = Duration::from_millis(5);
const MAX_ACCEPT_RETRY: Duration = Duration::from_secs(1);
/// Interval at which refusals that were not logged yet are logged.
const TELL_PERIOD: Duration = Duration::from_secs(60);

/// What all connections share.
#[derive(Clone)]
struct Server {
    routes: Router,
    tls: Option<TlsAcceptor>,
    builder: auto::Builder<TokioExecutor>,
    port: Arc<Port>,
    /// Ends connections when their requests are answered.
    shutdown: CancellationToken,
    /// Ends connections at once.
    abort: CancellationToken,
}

/// Serves connections until `shutdown`, then until the requests on them are answered. If this future
/// is dropped, all connections are closed.
pub async fn listen(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    routes: Router,
    port: Arc<Port>,
    shutdown: CancellationToken,
) {
    port.connections.fit_descriptors();
    let abort = CancellationToken::new();
    let _closes = abort.clone().drop_guard();
    let builder = builder(port.config.streams);
    let server = Server { routes, tls: tls.map(TlsAcceptor::from), builder, port, shutdown, abort };
    let tasks = TaskTracker::new();
    let tells = async {
        let mut minutes = interval(TELL_PERIOD);
        loop {
            minutes.tick().await;
            server.port.refusals.tell();
        }
    };
    tokio::select! {
        () = server.shutdown.cancelled() => {}
        never = tells => never,
        never = server.accept_all(&listener, &tasks) => never,
    }
    // Closes the socket before the requests are answered, so that the kernel takes no further
    // connections.
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

fn builder(streams: u32) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .max_pending_accept_reset_streams(MAX_EARLY_RESETS)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_header_list_size(MAX_HEADERS)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    builder
}

impl Server {
    async fn accept_all(&self, listener: &TcpListener, tasks: &TaskTracker) -> ! {
        let mut retry = ACCEPT_RETRY;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    retry = ACCEPT_RETRY;
                    if let Some(connection) = self.port.connections.admit(peer) {
                        tasks.spawn(self.clone().attend(stream, connection));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    self.port.refusals.note(Refused::Accept, None);
                    // A closed connection gives its descriptor back.
                    if !self.port.connections.close_one() {
                        retry = MAX_ACCEPT_RETRY.min(2 * retry);
                    }
                    sleep(retry).await;
                }
            }
        }
    }

    async fn attend(self, stream: TcpStream, connection: Connection) {
        // Without TCP_NODELAY, an order after an acknowledgement waits 40 ms for the agent's
        // delayed ACK.
        if stream.set_nodelay(true).is_err() {
            return;
        }
        tokio::select! {
            () = self.abort.cancelled() => {}
            () = connection.closed() => {}
            () = self.talk(stream, &connection) => {}
        }
    }

    async fn talk(&self, stream: TcpStream, connection: &Connection) {
        let Some(acceptor) = &self.tls else { return self.serve(stream, connection).await };
        match timeout(self.port.config.handshake, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                connection.advance();
                self.serve(stream, connection).await;
            }
            failed => {
                if let Ok(Err(error)) = failed {
                    tracing::debug!(%error, "a TLS handshake failed");
                }
                self.refuse(Refused::Handshake, connection);
            }
        }
    }

    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, connection: &Connection) {
        let (routes, caller) = (&self.routes, connection);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(caller.clone());
            routes.clone().call(request)
        });
        let mut serving = pin!(self.builder.serve_connection(TokioIo::new(stream), service));
        let config = &self.port.config;
        tokio::select! {
            // An error says only that the client broke the connection or the protocol.
            _ended = serving.as_mut() => return,
            () = connection.overdue(config.first_request, config.stranger_idle) => {
                return self.refuse(Refused::Idle, connection);
            }
            () = self.shutdown.cancelled() => {}
        }
        serving.as_mut().graceful_shutdown();
        let _ended = serving.await;
    }

    fn refuse(&self, cause: Refused, connection: &Connection) {
        self.port.refusals.note(cause, Some(connection.address().ip()));
    }
}
