//! Admits connections to a listener. When the listener is full, closes a connection of the peer
//! with the most connections, so that no peer can keep others out.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// Maximum concurrent connections. More connections are not needed. Each agent measures at most a
/// few dozen beacons, and only a few of them at the same time, so at any time only a few agents are
/// connected to one beacon. Few programs read metrics.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Idle time after which a full listener may close a connection to admit a new one. This time is
/// longer than a prober's pause between two samples.
const CROWDED_IDLE: Duration = Duration::from_secs(5);

/// The open connections. When the listener is full, it closes a connection of the peer with the
/// most connections, so that no peer can keep others out. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Connections {
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
pub(super) struct Connection {
    number: u64,
    connections: Connections,
    /// Cancelled when the connection must be closed to admit another connection.
    pub(super) close: CancellationToken,
}

impl Connections {
    /// Admits a connection, or drops it if there is no room for it.
    pub(super) fn accept(&self, stream: TcpStream, peer: SocketAddr, port: u16) -> Option<(TcpStream, Connection)> {
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
    pub(super) fn note_request(&self) {
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
    use super::*;

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
