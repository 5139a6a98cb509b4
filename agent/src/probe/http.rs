//! The HTTP prober's connections: opens a connection phase by phase, and sends requests on it.
//! `probe::measure_host` combines these steps.
//!
//! The layers (a TCP socket with a source address, TLS, an HTTP/1.1 client connection) are put
//! together here, because a client library would hide their durations. A sample is the time from
//! passing a request to a warm connection until the response headers arrive.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::order_and_result::{ConnectFailure, Observation, Observer, Phases, ProbeError, Target};
use super::request_pacer::RequestPacer;
use crate::net::guard::Guard;
use crate::net::origin::{Origin, Scheme};
use crate::net::request_context::RequestContext;

const ADDRESSES_TRIED: usize = 3;
/// Maximum number of headers of a response. A response with more is an attack or an error.
const MAX_HEADERS: usize = 128;
const MAX_HEADER_BYTES: usize = 64 << 10;
/// Maximum bytes of the body to read after a sample with GET, so that the connection can be kept.
/// For a longer body, a new connection is cheaper.
const DRAINED_OF_SAMPLE: usize = 64 << 10;
/// Maximum bytes of the first response's body to read. The connection is warm only after this body
/// has been read.
const DRAINED_OF_WARM_UP: usize = 1 << 20;

/// The destination of requests: an origin, and its vetted addresses.
#[derive(Debug)]
pub(crate) struct Endpoint<'a> {
    context: &'a RequestContext,
    pub(crate) origin: Origin,
    path: String,
    pub(crate) addresses: Vec<IpAddr>,
    timeout: Duration,
    pub(crate) dns: Option<Duration>,
    /// The method of a connection's first request; `method` is the method of samples.
    warm_up: Method,
    method: Method,
}

pub(crate) struct Connection {
    sender: http1::SendRequest<Empty<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

pub(crate) struct TimedResponse {
    pub(crate) rtt: Duration,
    status: StatusCode,
    pub(crate) location: Option<String>,
    /// Whether the connection can be used for another request.
    pub(crate) reusable: bool,
}

pub(crate) enum NoResponse {
    Timeout,
    Closed,
    Broken(String),
}

pub(crate) struct TcpConnection {
    stream: TcpStream,
    address: IpAddr,
    pub(crate) took: Duration,
}

impl<'a> Endpoint<'a> {
    pub(crate) async fn resolve(
        context: &'a RequestContext,
        guard: &Guard,
        origin: Origin,
        target: &Target,
        timeout: Duration,
    ) -> Result<Self, ProbeError> {
        let started = Instant::now();
        let mut addresses = guard.resolve(&context.resolver, &origin.host).await?;
        let took = started.elapsed();
        let literal = matches!(url::Host::parse(&origin.host), Ok(url::Host::Ipv4(_) | url::Host::Ipv6(_)));
        if let Some(bind) = context.bind {
            addresses.retain(|address| address.is_ipv4() == bind.is_ipv4());
        }
        if addresses.is_empty() {
            let reason = format!("{} has no address of the source address's family (IPv4 or IPv6)", origin.host);
            return Err(ProbeError::BadOrder(reason));
        }
        // Try the target's preferred address first. The other addresses keep their order.
        addresses.sort_by_key(|address| target.first != Some(*address));
        let dns = (!literal).then_some(took);
        let (warm_up, method) = (Method::HEAD, Method::HEAD);
        Ok(Self { context, origin, path: target.path.clone(), addresses, timeout, dns, warm_up, method })
    }

    /// The address to try first: once a connection has been made, the address of that connection.
    pub(crate) fn address(&self) -> IpAddr {
        self.addresses[0]
    }

    pub(crate) const fn bind(&self) -> Option<IpAddr> {
        self.context.bind
    }

    /// Opens a TCP connection, and remembers its address for later connections. The time limit
    /// covers all attempts together: each address that is tried gets an equal share of the
    /// remaining time. So a host that drops packets takes no longer if it has several addresses.
    pub(crate) async fn tcp(&mut self) -> Result<TcpConnection, ProbeError> {
        let mut failure = None;
        let mut left = self.timeout;
        let tried = self.addresses.len().min(ADDRESSES_TRIED);
        for (address, to_try) in self.addresses.iter().copied().zip((1..=tried).rev()) {
            let started = Instant::now();
            let share = left / u32::try_from(to_try).unwrap_or(u32::MAX);
            let connecting = timeout(share, connect(address, self.origin.port, self.context.bind)).await;
            left = left.saturating_sub(started.elapsed());
            match connecting {
                Ok(Ok(stream)) => {
                    let took = started.elapsed();
                    self.addresses = vec![address];
                    return Ok(TcpConnection { stream, address, took });
                }
                Ok(Err(error)) => failure = Some((address, error.to_string(), ConnectFailure::from(error.kind()))),
                Err(_) => failure = Some((address, format!("no answer within {share:?}"), ConnectFailure::TimedOut)),
            }
        }
        let (address, reason, cause) = failure.expect("an endpoint has addresses");
        Err(ProbeError::Connect { origin: self.origin.to_string(), address, reason, cause })
    }

    async fn open(&mut self, observe: Observer<'_>) -> Result<(Connection, Phases), ProbeError> {
        let TcpConnection { stream, address, took } = self.tcp().await?;
        let mut phases = Phases { dns: self.dns, connect: Some(took), tls: None };
        let connection = match self.origin.scheme {
            Scheme::Http => self.handshake(stream).await?,
            Scheme::Https => {
                let started = Instant::now();
                let stream = self.tls(stream).await?;
                phases.tls = Some(started.elapsed());
                self.handshake(stream).await?
            }
        };
        observe(Observation::Connected { origin: self.origin.clone(), address, phases });
        Ok((connection, phases))
    }

    async fn tls(&self, stream: TcpStream) -> Result<tokio_rustls::client::TlsStream<TcpStream>, ProbeError> {
        let wrong = |reason: String| ProbeError::Tls { origin: self.origin.to_string(), reason };
        let name = self.origin.host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(name).map_err(|error| wrong(error.to_string()))?;
        let connecting = TlsConnector::from(self.context.tls.clone()).connect(name, stream);
        match timeout(self.timeout, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(wrong(error.to_string())),
            Err(_) => Err(wrong(format!("no answer within {:?}", self.timeout))),
        }
    }

    async fn handshake<S>(&self, stream: S) -> Result<Connection, ProbeError>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let mut builder = http1::Builder::new();
        builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEADER_BYTES);
        let (sender, driver) = builder.handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error))?;
        // Errors of the connection are ignored here, because its requests report them.
        let driver = tokio::spawn(async move { drop(driver.await) });
        Ok(Connection { sender, driver })
    }

    fn broken(&self, error: &hyper::Error) -> ProbeError {
        ProbeError::Protocol { origin: self.origin.to_string(), reason: error.to_string() }
    }

    fn request(&self, method: &Method) -> Result<Request<Empty<Bytes>>, ProbeError> {
        Request::builder()
            .method(method)
            .uri(self.path.as_str())
            .header(HOST, self.origin.authority())
            .header(USER_AGENT, self.context.user_agent.header())
            .header(ACCEPT, HeaderValue::from_static("*/*"))
            .body(Empty::new())
            .map_err(|error| ProbeError::BadOrder(error.to_string()))
    }

    /// Whether samples use GET because the server refuses HEAD.
    pub(crate) fn refuses_head(&self) -> bool {
        self.method == Method::GET
    }

    pub(crate) async fn get(
        &self,
        connection: &mut Connection,
        pacer: &mut RequestPacer,
    ) -> Result<TimedResponse, ProbeError> {
        pacer.pause().await;
        pacer.spend();
        let answer = self.send(connection, &Method::GET, DRAINED_OF_WARM_UP).await?;
        answer.map_err(|unanswered| why_lost(&self.origin, &unanswered))
    }

    pub(crate) async fn sample(
        &self,
        connection: &mut Connection,
    ) -> Result<Result<TimedResponse, NoResponse>, ProbeError> {
        self.send(connection, &self.method, DRAINED_OF_SAMPLE).await
    }

    async fn send(
        &self,
        connection: &mut Connection,
        method: &Method,
        drained: usize,
    ) -> Result<Result<TimedResponse, NoResponse>, ProbeError> {
        let request = self.request(method)?;
        Ok(connection.send(request, self.timeout, drained).await)
    }

    /// Opens a connection and sends its first request, which is not a sample. Uses GET if the
    /// server closes the connection after HEAD.
    pub(crate) async fn warm_up(
        &mut self,
        pacer: &mut RequestPacer,
        observe: Observer<'_>,
    ) -> Result<(Connection, Phases, TimedResponse), ProbeError> {
        loop {
            pacer.pause().await;
            pacer.spend();
            let (mut connection, phases) = self.open(observe).await?;
            let answer = self.send(&mut connection, &self.warm_up, DRAINED_OF_WARM_UP).await?;
            match answer {
                Ok(answer) => {
                    if matches!(answer.status, StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED) {
                        self.method = Method::GET;
                    }
                    return Ok((connection, phases, answer));
                }
                Err(NoResponse::Timeout) => return Err(ProbeError::Timeout(self.origin.to_string())),
                Err(_) if self.warm_up == Method::HEAD => {
                    (self.warm_up, self.method) = (Method::GET, Method::GET);
                }
                Err(unanswered) => {
                    return Err(ProbeError::Protocol { origin: self.origin.to_string(), reason: unanswered.into() });
                }
            }
        }
    }
}

impl Connection {
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    async fn send(
        &mut self,
        request: Request<Empty<Bytes>>,
        within: Duration,
        drained: usize,
    ) -> Result<TimedResponse, NoResponse> {
        let sent = Instant::now();
        let response = timeout(within, self.sender.send_request(request)).await;
        let rtt = sent.elapsed();
        let response = match response {
            Err(_) => return Err(NoResponse::Timeout),
            Ok(Err(error)) if error.is_parse() || error.is_user() => return Err(NoResponse::Broken(error.to_string())),
            Ok(Err(_)) => return Err(NoResponse::Closed),
            Ok(Ok(response)) => response,
        };
        let status = response.status();
        let location = redirect(&response);
        let drain = async { drain(response, drained).await && self.sender.ready().await.is_ok() };
        let reusable = timeout(within, drain).await.unwrap_or(false);
        Ok(TimedResponse { rtt, status, location, reusable })
    }
}

impl From<NoResponse> for String {
    fn from(unanswered: NoResponse) -> Self {
        match unanswered {
            NoResponse::Timeout => "no answer in time".to_owned(),
            NoResponse::Closed => "the connection was closed".to_owned(),
            NoResponse::Broken(reason) => reason,
        }
    }
}

fn redirect(response: &Response<Incoming>) -> Option<String> {
    let location = response.headers().get(LOCATION).filter(|_| response.status().is_redirection())?;
    location.to_str().ok().map(str::to_owned)
}

/// Reads a body to its end. Returns `false` if the body is longer than `most`.
async fn drain(response: Response<Incoming>, most: usize) -> bool {
    let mut body = response.into_body();
    let mut left = most;
    if body.size_hint().lower() > u64::try_from(most).unwrap_or(u64::MAX) {
        return false;
    }
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(length) else { return false };
        left = rest;
    }
    true
}

async fn connect(address: IpAddr, port: u16, bind: Option<IpAddr>) -> std::io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Without this option, a request could wait until the previous request is acknowledged.
    socket.set_nodelay(true)?;
    if let Some(bind) = bind {
        socket.bind(SocketAddr::new(bind, 0))?;
    }
    socket.connect(SocketAddr::new(address, port)).await
}

/// The error to report if no sample was answered, given why the last sample was lost.
pub(crate) fn why_lost(origin: &Origin, unanswered: &NoResponse) -> ProbeError {
    match unanswered {
        NoResponse::Broken(reason) => ProbeError::Protocol { origin: origin.to_string(), reason: reason.clone() },
        NoResponse::Timeout | NoResponse::Closed => ProbeError::Timeout(origin.to_string()),
    }
}
