//! The beacon: a tiny HTTP server that lets other agents measure a landmark.
//!
//! It responds to HEAD and GET with 204 and nothing else. It is open to the network, so
//! connections, headers and idle time are bounded, and it stores nothing a client sends.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Maximum connections at once. Each of a fleet's agents measures at most a few dozen beacons.
const MAX_CONNECTIONS: usize = 256;
/// When all places are taken, a connection idle for this long makes room for another: a prober's
/// pauses in a series are not longer.
const CROWDED_IDLE: Duration = Duration::from_secs(5);
const MAX_HEADERS: usize = 32;
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Time limit for the next request on a connection: longer than the pause between two probes.
const IDLE: Duration = Duration::from_secs(30);
/// Maximum life of a connection, so that no client keeps a place for ever.
const MAX_LIFE: Duration = Duration::from_secs(600);
/// Delay after a failed accept: file descriptors have run out, and may become free.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A bound beacon that does not respond yet.
#[derive(Debug)]
pub struct Beacon {
    listener: TcpListener,
    pub port: u16,
}

impl Beacon {
    /// Binds the beacon; port 0 takes any free port.
    pub async fn bind(listen: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    /// Serves until it is stopped. It cancels `stop` however it ends: an agent with a dead beacon
    /// stops and reports it.
    pub async fn serve(self, stop: CancellationToken) {
        supervised(self.serve_all(stop.clone()), stop).await;
    }

    async fn serve_all(self, stop: CancellationToken) {
        let guests = Guests::default();
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
                        tracing::warn!(%error, "the beacon accepts no connection; it tries again");
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            failing = false;
            let Some(guest) = guests.admit(peer.ip(), Instant::now()) else {
                tracing::debug!(%peer, "the beacon is crowded");
                continue;
            };
            let stop = stop.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = guest.leave.cancelled() => {}
                    () = answer(stream, &guest) => {}
                }
            });
        }
    }
}

/// Runs a future that should never end; cancels `stop` when it does, even by a panic.
async fn supervised(serving: impl Future<Output = ()>, stop: CancellationToken) {
    let _ended = stop.drop_guard();
    serving.await;
}

/// The current connections. When all places are taken, the peer with the most connections loses
/// one, so that no peer blocks the beacon for others. Cheap to clone.
#[derive(Debug, Clone, Default)]
struct Guests {
    /// Never held across an await.
    present: Arc<Mutex<Present>>,
}

#[derive(Debug, Default)]
struct Present {
    guests: HashMap<u64, Seat>,
    next: u64,
}

#[derive(Debug)]
struct Seat {
    peer: IpAddr,
    /// When its last request came, or when it connected.
    asked: Instant,
    leave: CancellationToken,
}

/// A current connection; dropping it frees its place.
#[derive(Debug)]
struct Guest {
    number: u64,
    guests: Guests,
    /// Cancelled when it must make room.
    leave: CancellationToken,
}

impl Guests {
    /// Admits a connection if there is room, or if another makes room for it.
    fn admit(&self, peer: IpAddr, now: Instant) -> Option<Guest> {
        let peer = network(peer);
        let mut present = self.present();
        if present.guests.len() >= MAX_CONNECTIONS {
            let number = present.who_makes_room_for(peer, now)?;
            if let Some(seat) = present.guests.remove(&number) {
                seat.leave.cancel();
            }
        }
        let (number, leave) = (present.next, CancellationToken::new());
        present.next += 1;
        present.guests.insert(number, Seat { peer, asked: now, leave: leave.clone() });
        Some(Guest { number, guests: self.clone(), leave })
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Present {
    /// The connection idle for longest, of the peer with the most connections. A peer that itself
    /// has the most only gets the place of an idle connection.
    fn who_makes_room_for(&self, peer: IpAddr, now: Instant) -> Option<u64> {
        let mut seats: HashMap<IpAddr, usize> = HashMap::new();
        for seat in self.guests.values() {
            *seats.entry(seat.peer).or_default() += 1;
        }
        let has = |peer: &IpAddr| seats.get(peer).copied().unwrap_or_default();
        let idle = |seat: &Seat| now.saturating_duration_since(seat.asked);
        let (number, seat) = self.guests.iter().max_by_key(|(_, seat)| (has(&seat.peer), idle(seat)))?;
        (has(&seat.peer) > has(&peer) + 1 || idle(seat) >= CROWDED_IDLE).then_some(*number)
    }
}

impl Guest {
    fn asks(&self) {
        if let Some(seat) = self.guests.present().guests.get_mut(&self.number) {
            seat.asked = Instant::now();
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.guests.present().guests.remove(&self.number);
    }
}

/// The network that counts as one peer: an IPv4 address, or the IPv6 network of one customer.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(peer) => IpAddr::V6(Ipv6Addr::from_bits(peer.to_bits() >> 64 << 64)),
        peer => peer,
    }
}

async fn answer(stream: TcpStream, guest: &Guest) {
    // The response must leave at once: other agents measure it.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE).max_headers(MAX_HEADERS).max_buf_size(MAX_HEADER_BYTES);
    let connection = builder.serve_connection(TokioIo::new(stream), service_fn(|request| reply(request, guest)));
    match tokio::time::timeout(MAX_LIFE, connection).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::debug!(%error, "beacon connection broke"),
    }
}

async fn reply(request: Request<Incoming>, guest: &Guest) -> Result<Response<Empty<Bytes>>, Infallible> {
    guest.asks();
    let mut response = Response::new(Empty::new());
    *response.status_mut() = match *request.method() {
        Method::HEAD | Method::GET => StatusCode::NO_CONTENT,
        _ => StatusCode::METHOD_NOT_ALLOWED,
    };
    Ok(response)
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

    #[tokio::test]
    async fn the_beacon_answers_and_stops() {
        let beacon = Beacon::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
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
    async fn one_peer_cannot_take_the_beacon_from_the_others() {
        let beacon = Beacon::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
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

    #[test]
    fn where_it_is_crowded_whoever_has_most_and_is_idle_makes_room() {
        let (guests, begin) = (Guests::default(), Instant::now());
        let peer = |last: u8| IpAddr::from([192, 0, 2, last]);
        let half = MAX_CONNECTIONS / 2;
        let mut present: Vec<Guest> =
            (0..MAX_CONNECTIONS).map(|number| guests.admit(peer(u8::from(number >= half)), begin).unwrap()).collect();
        let soon = begin + CROWDED_IDLE / 2;
        assert!(guests.admit(peer(0), soon).is_none(), "it has its share, and nobody is idle");
        let new = guests.admit(peer(2), soon).unwrap();
        let left: Vec<usize> = (0..MAX_CONNECTIONS).filter(|number| present[*number].leave.is_cancelled()).collect();
        assert_eq!(left.len(), 1);
        present.retain(|guest| !guest.leave.is_cancelled());
        assert_eq!(guests.present().guests.len(), MAX_CONNECTIONS);
        assert!(guests.admit(peer(0), begin + CROWDED_IDLE).is_some(), "somebody is idle");
        drop((new, present));
        assert_eq!(guests.present().guests.len(), 0);
    }

    #[test]
    fn a_peer_of_ipv6_is_a_network() {
        let network = |address: &str| network(address.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(network("::ffff:192.0.2.1"), "192.0.2.1");
    }

    #[tokio::test]
    async fn a_beacon_that_dies_stops_its_agent_at_once() {
        let stop = CancellationToken::new();
        let serving = tokio::spawn(supervised(async { panic!("on purpose") }, stop.clone()));
        stop.cancelled().await;
        assert!(serving.await.unwrap_err().is_panic());
    }
}
