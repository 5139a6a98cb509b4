//! The servers of the sites. Each machine has one listener, and all listeners have the same port.
//!
//! In the rootless grade, [`crate::world::response_delays`] delays every response. The access log
//! contains the requests that arrived, independently of the reports of agents.

use std::convert::Infallible;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpCongestion;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::addresses::first_free;
use super::response_delays::{Connection, Destination, Wan};
use super::site_pages::{NO_PAGE, NO_ROBOTS, SiteWeb};

/// Possible ports of the sites, in the order in which they are tried.
const SITE_PORTS: [u16; 4] = [8080, 18080, 28080, 38080];
const BACKLOG: u32 = 1024;
/// Time between a failed attempt to accept a connection and the next attempt.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// The congestion control of sites in the tun grade. Most real sites use cubic. The lab sets cubic
/// explicitly, because some hosts use bbr by default, which hardly reacts to loss.
const CONGESTION_CONTROL: &str = "cubic";

/// A body whose parts are sent at the times that the WAN schedules.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

#[derive(Debug, Clone)]
pub struct Access {
    pub site: usize,
    /// The index of the agent; `None` for other clients.
    pub agent: Option<usize>,
    pub get: bool,
    pub path: String,
    pub status: StatusCode,
    pub at: Instant,
}

/// The transmission of a body.
#[derive(Debug, Clone, Copy)]
pub struct Delivery {
    /// The index of the site.
    pub site: usize,
    /// When the last byte is sent. In the rootless grade, the byte arrives at the same time.
    pub until: Instant,
    pub bytes: usize,
}

/// All requests to sites, in order of arrival, and all sent bodies. Clones share the log.
#[derive(Debug, Clone, Default)]
pub struct AccessLog {
    /// Every server task appends to both lists. No code holds the locks across an await.
    entries: Arc<Mutex<Vec<Access>>>,
    deliveries: Arc<Mutex<Vec<Delivery>>>,
}

impl AccessLog {
    fn note(&self, access: Access) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push(access);
    }

    fn deliver(&self, site: usize, releases: &[(Instant, usize)]) {
        let Some((until, _)) = releases.last() else { return };
        let bytes = releases.iter().map(|(_, bytes)| bytes).sum();
        let delivery = Delivery { site, until: *until, bytes };
        self.deliveries.lock().unwrap_or_else(PoisonError::into_inner).push(delivery);
    }

    /// The bodies sent so far, including those whose transmission has not ended.
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.deliveries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn entries(&self) -> Vec<Access> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Opens a listener in the network namespace of the calling thread.
pub(crate) fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until `shutdown` is cancelled, and serves each in its own task. `what` names
/// the server in the log.
pub(crate) fn accept_all<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    what: &'static str,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
    serve: impl Fn(TcpStream, IpAddr) -> F + Send + 'static,
) {
    let (streams, ended) = (tasks.clone(), shutdown.clone());
    tasks.spawn(shutdown.clone().run_until_cancelled_owned(async move {
        loop {
            match listener.accept().await {
                Ok((stream, source)) => {
                    streams.spawn(ended.clone().run_until_cancelled_owned(serve(stream, source.ip())));
                }
                Err(error) => {
                    // Probably no file descriptor is free, so wait until some connections have
                    // ended.
                    tracing::warn!(%error, ?listener, "{what} could not accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }));
}

/// The bound listeners of all machines.
#[derive(Debug)]
pub struct SiteServers {
    listeners: Vec<TcpListener>,
    port: u16,
}

impl SiteServers {
    /// Binds a listener for each machine, in the network namespace of the calling thread. All use
    /// the first of the possible ports that is free on every machine.
    pub fn bind(wan: &Wan) -> anyhow::Result<Self> {
        let tried = SITE_PORTS.into_iter().map(|port| Self::bind_on(wan, port));
        first_free(tried).with_context(|| format!("the sites need one of the ports {SITE_PORTS:?}"))
    }

    fn bind_on(wan: &Wan, port: u16) -> anyhow::Result<Self> {
        let mut listeners = Vec::new();
        for machine in 0..wan.scenario().machines() {
            let address = SocketAddr::new(wan.lane().site(machine).into(), port);
            let listener = listen(address).with_context(|| format!("listen for a site on {address}"))?;
            if wan.lane().is_tun() {
                let control = OsString::from(CONGESTION_CONTROL);
                setsockopt(&listener, TcpCongestion, &control)
                    .with_context(|| format!("set a site's congestion control to {CONGESTION_CONTROL}"))?;
            }
            listeners.push(listener);
        }
        Ok(Self { listeners, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn serve(
        self,
        wan: &Wan,
        webs: &Arc<Vec<SiteWeb>>,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> AccessLog {
        let log = AccessLog::default();
        for (machine, listener) in self.listeners.into_iter().enumerate() {
            let sites: Arc<[usize]> = wan.scenario().sites_of(machine).collect();
            let server = SiteServer { sites, wan: wan.clone(), webs: Arc::clone(webs), log: log.clone() };
            accept_all(listener, "a site", tasks, shutdown, move |stream, source| {
                server.clone().connection(stream, source)
            });
        }
        log
    }
}

#[derive(Debug, Clone)]
struct SiteServer {
    /// The indices of the machine's sites, at least one.
    sites: Arc<[usize]>,
    wan: Wan,
    webs: Arc<Vec<SiteWeb>>,
    log: AccessLog,
}

struct Answer {
    status: StatusCode,
    content_type: &'static str,
    body: String,
    thinking: Duration,
}

impl SiteServer {
    async fn connection(self, stream: TcpStream, source: IpAddr) {
        // Disable Nagle's algorithm, so that small responses do not wait for acknowledgements.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "nodelay was refused");
        }
        let connection = Arc::new(self.wan.connect(source, Destination::Site(self.sites[0])));
        let service = service_fn(|request| {
            let arrived = Instant::now();
            let (server, connection) = (self.clone(), Arc::clone(&connection));
            async move { Ok::<_, Infallible>(server.respond(&request, connection, arrived).await) }
        });
        let http = hyper::server::conn::http1::Builder::new();
        let served = http.serve_connection(TokioIo::new(stream), service).await;
        if let Err(error) = served {
            // An error is normal, because agents often close a connection in the middle of a body.
            tracing::debug!(%error, site = self.sites[0], "a connection to a site broke");
        }
    }

    async fn respond(
        &self,
        request: &Request<Incoming>,
        connection: Arc<Connection>,
        arrived: Instant,
    ) -> Response<Body> {
        let path = request.uri().path();
        let head = request.method() == Method::HEAD;
        let site = self.site_of(request);
        let answer = self.answer(site, request.method(), path);
        let body = Bytes::from(answer.body);
        self.log.note(Access {
            site,
            agent: connection.agent(),
            get: request.method() == Method::GET,
            path: path.to_owned(),
            status: answer.status,
            at: arrived,
        });
        connection.first_byte(arrived, answer.thinking).await;
        let length = HeaderValue::from(body.len());
        let body = if head {
            Empty::new().boxed_unsync()
        } else {
            let releases = connection.schedule(body.len(), Instant::now());
            self.log.deliver(site, &releases);
            timed_body(body, releases, connection)
        };
        let mut response = Response::new(body);
        *response.status_mut() = answer.status;
        response.headers_mut().insert(CONTENT_LENGTH, length);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
        response
    }

    /// The site that the request's Host header names, or the machine's first site if the header
    /// names no site of the machine.
    fn site_of(&self, request: &Request<Incoming>) -> usize {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let host = host.split(':').next().unwrap_or_default();
        let named = self.sites.iter().find(|site| self.wan.scenario().sites[**site].host == host);
        named.copied().unwrap_or(self.sites[0])
    }

    fn answer(&self, site: usize, method: &Method, path: &str) -> Answer {
        let web = &self.webs[site];
        let plain = |status, body: &str| Answer {
            status,
            content_type: "text/plain; charset=utf-8",
            body: body.to_owned(),
            thinking: Duration::ZERO,
        };
        if method != Method::GET && method != Method::HEAD {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        }
        if path == "/robots.txt" {
            return match web.robots() {
                Some(text) => plain(StatusCode::OK, &text),
                None => plain(StatusCode::NOT_FOUND, NO_ROBOTS),
            };
        }
        match web.page(path) {
            Some((index, page)) => Answer {
                status: StatusCode::OK,
                content_type: "text/html; charset=utf-8",
                body: web.body(index),
                thinking: page.thinking,
            },
            None => plain(StatusCode::NOT_FOUND, NO_PAGE),
        }
    }
}

/// A body whose parts are sent at the times that the WAN schedules from now on.
pub fn delayed_body(body: Bytes, connection: Arc<Connection>) -> Body {
    let releases = connection.schedule(body.len(), Instant::now());
    timed_body(body, releases, connection)
}

/// A body whose parts are sent at the times in `releases`.
fn timed_body(body: Bytes, releases: Vec<(Instant, usize)>, connection: Arc<Connection>) -> Body {
    let chunks = futures_util::stream::iter(releases).scan(0_usize, move |sent, (at, bytes)| {
        let chunk = body.slice(*sent..*sent + bytes);
        *sent += bytes;
        let connection = Arc::clone(&connection);
        futures_util::future::ready(Some((connection, at, chunk)))
    });
    let frames = chunks.filter_map(|(connection, at, chunk)| async move {
        if at > Instant::now() {
            connection.wait(at).await;
        }
        (!chunk.is_empty()).then(|| Ok::<_, Infallible>(Frame::data(chunk)))
    });
    StreamBody::new(frames).boxed_unsync()
}
