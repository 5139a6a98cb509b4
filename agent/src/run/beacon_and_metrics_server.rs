//! The beacon, at which other agents measure their round trip to this agent, and the server at
//! which Prometheus reads the metrics. Both are small HTTP servers. Because anyone on the network
//! may connect, the number of connections, the header size and the idle time are limited, and
//! nothing that a client sends is stored.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::metrics;

/// Binds the address of the configuration; `None` if the agent has no beacon.
pub(crate) async fn bind_beacon(config: &Config) -> anyhow::Result<Option<Listener>> {
    if !config.beacon.enabled {
        return Ok(None);
    }
    let listen = config.beacon.listen;
    let beacon = Listener::bind(listen, beacon_reply).await;
    let beacon = beacon.with_context(|| {
        format!("bind the beacon to {listen}; set beacon.listen to a free address, or beacon.enabled to false")
    })?;
    Ok(Some(beacon))
}

pub(crate) fn beacon_reply(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = match *request.method() {
        Method::HEAD | Method::GET => StatusCode::NO_CONTENT,
        _ => StatusCode::METHOD_NOT_ALLOWED,
    };
    response
}

/// Binds the address of the configuration; `None` if there is none.
pub(crate) async fn bind_metrics_server(config: &Config) -> anyhow::Result<Option<Listener>> {
    let Some(listen) = config.metrics else { return Ok(None) };
    let bound = Listener::bind(listen, metrics::reply).await;
    Ok(Some(bound.with_context(|| format!("listen for metrics at {listen}; set metrics to a free address"))?))
}

const MAX_HEADERS: usize = 32;
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Time limit for the head of the next request on a connection. The limit is longer than the pause
/// between two samples, so that a prober keeps its connection. Tests use a shorter limit.
const IDLE: Duration = Duration::from_secs(if cfg!(test) { 6 } else { 30 });
/// Maximum lifetime of a connection, so that no client keeps a connection permanently.
const MAX_LIFE: Duration = Duration::from_secs(600);
/// Delay after a failed accept, which usually means that no file descriptor is free.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Makes the response to a request. Request bodies are not read.
pub(crate) type Reply = fn(&Request<Incoming>) -> Response<Full<Bytes>>;

/// A server that has bound its address but does not serve yet.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    reply: Reply,
    pub port: u16,
}

impl Listener {
    /// Binds the address; port 0 takes any free port.
    pub async fn bind(listen: SocketAddr, reply: Reply) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, reply, port })
    }

    /// Serves until `stop` is cancelled. If serving ends for another reason, cancels `stop`, so
    /// that the agent stops and reports the failure.
    pub async fn serve(self, stop: CancellationToken) {
        supervised(self.serve_all(stop.clone()), stop).await;
    }

    async fn serve_all(self, stop: CancellationToken) {
        let connections = Connections::default();
        let mut failing = false;
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, port = self.port, "cannot accept connections; trying again");
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            failing = false;
            let Some((stream, connection)) = connections.accept(stream, peer, self.port) else { continue };
            let (stop, reply) = (stop.clone(), self.reply);
            tokio::spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = connection.close.cancelled() => {}
                    () = answer(stream, &connection, reply) => {}
                }
            });
        }
    }
}

/// Runs a future that should never end. If the future ends, even by a panic, cancels `stop`.
async fn supervised(serving: impl Future<Output = ()>, stop: CancellationToken) {
    let _ended = stop.drop_guard();
    serving.await;
}

async fn answer(stream: TcpStream, connection: &Connection, reply: Reply) {
    // Send responses without delay, because other agents measure the time until a response arrives.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE).max_headers(MAX_HEADERS).max_buf_size(MAX_HEADER_BYTES);
    let service = service_fn(async |request| {
        connection.note_request();
        Ok::<_, Infallible>(reply(&request))
    });
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(MAX_LIFE, serving).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::debug!(%error, "connection broke"),
    }
}

/// Maximum concurrent connections. More connections are not needed. Each agent measures at most a
/// few dozen beacons, and only a few of them at the same time, so at any time only a few agents are
/// connected to one beacon. Few programs read metrics.
const MAX_CONNECTIONS: usize = 256;
/// Idle time after which a full listener may close a connection to admit a new one. This time is
/// longer than a prober's pause between two samples.
const CROWDED_IDLE: Duration = Duration::from_secs(5);

/// The open connections. When the listener is full, it closes a connection of the peer with the
/// most connections, so that no peer can keep others out. Cheap to clone.
#[derive(Debug, Clone, Default)]
struct Connections {
    /// This lock is never held across an await.
    table: Arc<Mutex<ConnectionTable>>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    connections: HashMap<u64, ConnectionState>,
    next: u64,
}

#[derive(Debug)]
struct ConnectionState {
    peer: IpAddr,
    /// The time of the last request, or of the connection's start if there was no request yet.
    last_request: Instant,
    close: CancellationToken,
}

/// An open connection. Dropping it makes room for another.
#[derive(Debug)]
pub(crate) struct Connection {
    number: u64,
    connections: Connections,
    /// Cancelled when the connection must be closed to admit another connection.
    pub(crate) close: CancellationToken,
}

impl Connections {
    /// Admits a connection, or drops it if there is no room for it.
    pub(crate) fn accept(&self, stream: TcpStream, peer: SocketAddr, port: u16) -> Option<(TcpStream, Connection)> {
        let admitted = self.admit(peer.ip(), Instant::now());
        if admitted.is_none() {
            tracing::debug!(%peer, port, "too many connections: one was refused");
        }
        admitted.map(|connection| (stream, connection))
    }

    /// Admits a connection if there is room for it, or if another connection can be closed for it.
    fn admit(&self, peer: IpAddr, now: Instant) -> Option<Connection> {
        let peer = network(peer);
        let mut table = self.table();
        if table.connections.len() >= MAX_CONNECTIONS {
            let number = table.connection_to_evict_for(peer, now)?;
            if let Some(state) = table.connections.remove(&number) {
                state.close.cancel();
            }
        }
        let (number, close) = (table.next, CancellationToken::new());
        table.next += 1;
        table.connections.insert(number, ConnectionState { peer, last_request: now, close: close.clone() });
        Some(Connection { number, connections: self.clone(), close })
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
    /// Chooses the connection to close for a new connection of `peer`. This is the connection that
    /// has been idle longest among those of the peer with the most connections. If that peer has at
    /// most one connection more than `peer`, the connection is closed only if it has been idle for
    /// at least [`CROWDED_IDLE`].
    fn connection_to_evict_for(&self, peer: IpAddr, now: Instant) -> Option<u64> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for state in self.connections.values() {
            *counts.entry(state.peer).or_default() += 1;
        }
        let has = |peer: &IpAddr| counts.get(peer).copied().unwrap_or_default();
        let idle = |state: &ConnectionState| now.saturating_duration_since(state.last_request);
        let (number, state) = self.connections.iter().max_by_key(|(_, state)| (has(&state.peer), idle(state)))?;
        (has(&state.peer) > has(&peer) + 1 || idle(state) >= CROWDED_IDLE).then_some(*number)
    }
}

impl Connection {
    fn note_request(&self) {
        if let Some(state) = self.connections.table().connections.get_mut(&self.number) {
            state.last_request = Instant::now();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.table().connections.remove(&self.number);
    }
}

/// The network that counts as one peer: a single IPv4 address, or the IPv6 prefix that a provider
/// assigns to one customer.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(peer) => IpAddr::V6(Ipv6Addr::from_bits(peer.to_bits() >> 64 << 64)),
        peer => peer,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(port: u16, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn beacon() -> Listener {
        Listener::bind("127.0.0.1:0".parse().unwrap(), beacon_reply).await.unwrap()
    }

    #[tokio::test]
    async fn the_beacon_answers_and_stops() {
        let beacon = beacon().await;
        let port = beacon.port;
        assert_ne!(port, 0);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(beacon.serve(stop.clone()));
        let head = ask(port, "HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 204"), "{head}");
        let post = ask(port, "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(post.starts_with("HTTP/1.1 405"), "{post}");
        let many = format!("GET / HTTP/1.1\r\n{}connection: close\r\n\r\n", "a: b\r\n".repeat(100));
        assert!(ask(port, &many).await.starts_with("HTTP/1.1 431"));
        stop.cancel();
        serving.await.unwrap();
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    }

    #[tokio::test]
    async fn one_peer_cannot_block_a_listener() {
        let beacon = beacon().await;
        let port = beacon.port;
        let stop = CancellationToken::new();
        tokio::spawn(beacon.serve(stop.clone()));
        let mut idle = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            idle.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.9:0".parse().unwrap()).unwrap();
        let mut other = socket.connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
        let asked = other.write_all(b"HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        asked.await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(Duration::from_secs(5), other.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    }

    #[tokio::test]
    async fn half_a_request_is_ended_and_delays_nobody() {
        let beacon = beacon().await;
        let port = beacon.port;
        tokio::spawn(beacon.serve(CancellationToken::new()));
        let mut half = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        half.write_all(b"HEAD / HTTP/1.1\r\nhost:").await.unwrap();
        let head = ask(port, "HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 204"), "{head}");
        let began = Instant::now();
        assert_eq!(half.read_to_end(&mut Vec::new()).await.unwrap(), 0);
        let took = began.elapsed();
        assert!(took <= 2 * IDLE && took > IDLE / 2, "{took:?}");
    }

    #[tokio::test]
    async fn a_listener_that_dies_stops_its_agent_at_once() {
        let stop = CancellationToken::new();
        let serving = tokio::spawn(supervised(async { panic!("on purpose") }, stop.clone()));
        stop.cancelled().await;
        assert!(serving.await.unwrap_err().is_panic());
    }

    #[test]
    fn a_full_listener_evicts_an_idle_connection_of_the_peer_with_most() {
        let (connections, begin) = (Connections::default(), Instant::now());
        let peer = |last: u8| IpAddr::from([192, 0, 2, last]);
        let half = MAX_CONNECTIONS / 2;
        let mut open: Vec<Connection> = (0..MAX_CONNECTIONS)
            .map(|number| connections.admit(peer(u8::from(number >= half)), begin).unwrap())
            .collect();
        let soon = begin + CROWDED_IDLE / 2;
        assert!(connections.admit(peer(0), soon).is_none(), "this peer has its share, and no connection is idle");
        let new = connections.admit(peer(2), soon).unwrap();
        let left: Vec<usize> = (0..MAX_CONNECTIONS).filter(|number| open[*number].close.is_cancelled()).collect();
        assert_eq!(left.len(), 1);
        open.retain(|connection| !connection.close.is_cancelled());
        assert_eq!(connections.table().connections.len(), MAX_CONNECTIONS);
        assert!(connections.admit(peer(0), begin + CROWDED_IDLE).is_some(), "a connection is idle");
        drop((new, open));
        assert_eq!(connections.table().connections.len(), 0);
    }

    #[test]
    fn an_ipv6_peer_is_a_network() {
        let network = |address: &str| network(address.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(network("::ffff:192.0.2.1"), "192.0.2.1");
    }
}
