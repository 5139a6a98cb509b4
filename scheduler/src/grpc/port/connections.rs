//! The open connections of the port, by peer: which of them are strangers', which of them is closed
//! to make room for another, and how many calls strangers have open.
//!
//! A stranger's connection gets a new place at the end of the queue when it makes progress (its
//! handshake is done, a request begins), so silent connections are closed before those that work.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::refusals::{Refusals, Refused};
use crate::config::PortConfig;

/// The limit of strangers' calls of all peers together, as a multiple of the limit for each peer.
const PEERS_WITH_CALLS: u32 = 16;
/// The part of the process' descriptors that connections leave to the database, files and so on.
const RESERVED_DESCRIPTORS: u64 = 4;

/// The open connections. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Connections {
    /// This lock is never held across an await.
    table: Arc<Mutex<Table>>,
    refusals: Arc<Refusals>,
}

#[derive(Debug)]
struct Table {
    limits: Limits,
    peers: HashMap<IpAddr, PeerConnections>,
    /// Numbers of all peers together.
    known: u32,
    strangers: u32,
    calls: u32,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    connections: u32,
    peer_connections: u32,
    strangers: u32,
    peer_strangers: u32,
    stranger_calls: u32,
}

#[derive(Debug, Default)]
struct PeerConnections {
    /// Connections on which a right secret was presented.
    known: u32,
    /// The other connections, by their places in the queue, each with the token that closes it.
    strangers: BTreeMap<u64, CancellationToken>,
    /// Open calls of strangers.
    calls: u32,
}

/// An open connection. The connection's place is free again when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Connection(Arc<Open>);

#[derive(Debug)]
struct Open {
    address: SocketAddr,
    connections: Connections,
    close: CancellationToken,
    activity: Mutex<Activity>,
}

#[derive(Debug)]
struct Activity {
    /// The connection's place among strangers; `None` if a right secret was presented.
    place: Option<u64>,
    /// When the connection was accepted, or when its newest request began or ended.
    last: Instant,
    /// Whether the connection had a request.
    begun: bool,
    calls: u32,
}

/// A call of a stranger that is not answered completely yet.
#[derive(Debug)]
pub(crate) struct StrangerCall(Connection);

impl Connections {
    pub(super) fn new(config: &PortConfig, refusals: Arc<Refusals>) -> Self {
        let limits = Limits {
            connections: config.connections,
            peer_connections: config.peer_connections,
            strangers: config.strangers,
            peer_strangers: config.peer_strangers,
            stranger_calls: config.stranger_calls,
        };
        let table = Table { limits, peers: HashMap::new(), known: 0, strangers: 0, calls: 0, next: 0 };
        Self { table: Arc::new(Mutex::new(table)), refusals }
    }

    /// Raises the process' limit of descriptors as far as possible, and lowers the limit of
    /// connections if there are still too few descriptors for it.
    pub(crate) fn fit_descriptors(&self) {
        let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
        let soft = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
            Ok(()) => hard,
            Err(_) => getrlimit(Resource::RLIMIT_NOFILE).map_or(hard, |(soft, _)| soft),
        };
        let room = u32::try_from(soft - soft / RESERVED_DESCRIPTORS).unwrap_or(u32::MAX);
        let limits = &mut self.table().limits;
        if room < limits.connections {
            tracing::warn!(
                descriptors = soft,
                connections = room,
                "the limit of open files allows fewer connections than port.connections"
            );
            limits.connections = room;
        }
    }

    /// Admits a new connection, if necessary in the place of the oldest stranger; `None` if there
    /// is no place for it.
    pub(crate) fn admit(&self, address: SocketAddr) -> Option<Connection> {
        let peer = network(address.ip());
        let (place, close) = {
            let mut table = self.table();
            let Limits { connections, peer_connections, strangers, peer_strangers, .. } = table.limits;
            let own = table.peers.get(&peer).map_or((0, 0), |own| (own.known, length(&own.strangers)));
            let full_for_peer = own.0 + own.1 >= peer_connections || own.1 >= peer_strangers;
            let full = table.known + table.strangers >= connections || table.strangers >= strangers;
            let victim = match (full_for_peer, full) {
                (true, _) => Some(peer),
                (false, true) => table.most_strangers(),
                (false, false) => None,
            };
            if full || full_for_peer {
                if !victim.is_some_and(|victim| table.close_oldest(victim)) {
                    drop(table);
                    self.refusals.note(Refused::Connections, Some(address.ip()));
                    return None;
                }
                self.refusals.note(Refused::Crowded, victim);
            }
            table.enter(peer)
        };
        let activity = Activity { place: Some(place), last: Instant::now(), begun: false, calls: 0 };
        Some(Connection(Arc::new(Open { address, connections: self.clone(), close, activity: Mutex::new(activity) })))
    }

    /// Closes the oldest stranger's connection of the peer with most of them, so that a descriptor
    /// becomes free. Returns whether there was one.
    pub(crate) fn close_one(&self) -> bool {
        let mut table = self.table();
        let closed = table.most_strangers().is_some_and(|peer| table.close_oldest(peer));
        drop(table);
        closed
    }

    /// The numbers of open connections of strangers and of others.
    pub(crate) fn counts(&self) -> (u32, u32) {
        let table = self.table();
        (table.strangers, table.known)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn length(strangers: &BTreeMap<u64, CancellationToken>) -> u32 {
    u32::try_from(strangers.len()).unwrap_or(u32::MAX)
}

impl Table {
    fn enter(&mut self, peer: IpAddr) -> (u64, CancellationToken) {
        let (place, close) = (self.next, CancellationToken::new());
        self.next += 1;
        self.strangers += 1;
        self.peers.entry(peer).or_default().strangers.insert(place, close.clone());
        (place, close)
    }

    /// Takes a stranger's connection from the queue; `None` if it was closed.
    fn leave(&mut self, peer: IpAddr, place: u64) -> Option<CancellationToken> {
        let left = self.peers.get_mut(&peer)?.strangers.remove(&place)?;
        self.strangers -= 1;
        self.forget_if_gone(peer);
        Some(left)
    }

    fn forget_if_gone(&mut self, peer: IpAddr) {
        if self.peers.get(&peer).is_some_and(|own| own.known == 0 && own.calls == 0 && own.strangers.is_empty()) {
            self.peers.remove(&peer);
        }
    }

    fn most_strangers(&self) -> Option<IpAddr> {
        let most = self.peers.iter().max_by_key(|(_, own)| own.strangers.len());
        most.filter(|(_, own)| !own.strangers.is_empty()).map(|(peer, _)| *peer)
    }

    /// Closes the stranger's connection of this peer that has made no progress for longest.
    fn close_oldest(&mut self, peer: IpAddr) -> bool {
        let oldest = self.peers.get(&peer).and_then(|own| own.strangers.first_key_value());
        let Some(place) = oldest.map(|(place, _)| *place) else { return false };
        let closed = self.leave(peer, place);
        closed.inspect(CancellationToken::cancel).is_some()
    }
}

impl Connection {
    /// The client's address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Waits until the connection must be closed to make room for another.
    pub(crate) async fn closed(&self) {
        self.0.close.cancelled().await;
    }

    /// Notes progress of a stranger's connection, so that others are closed before it.
    pub(crate) fn advance(&self) {
        let (peer, mut activity) = (self.peer(), self.activity());
        let Some(place) = &mut activity.place else { return };
        let mut table = self.0.connections.table();
        if let Some(own) = table.peers.get_mut(&peer)
            && let Some(close) = own.strangers.remove(place)
        {
            *place = table.next;
            table.next += 1;
            table.peers.entry(peer).or_default().strangers.insert(*place, close);
        }
    }

    /// Notes that a right secret was presented: the connection no longer belongs to a stranger.
    pub(crate) fn vouch(&self) {
        let (peer, mut activity) = (self.peer(), self.activity());
        let Some(place) = activity.place else { return };
        let mut table = self.0.connections.table();
        // If the connection was closed in the meantime, its place is taken.
        if table.leave(peer, place).is_some() {
            activity.place = None;
            table.known += 1;
            table.peers.entry(peer).or_default().known += 1;
        }
    }

    /// Begins a call. If strangers have too many open calls, fails; `None` if the connection is no
    /// stranger's, so that the call needs no place.
    pub(crate) fn call(&self) -> Result<Option<StrangerCall>, Refused> {
        self.advance();
        let (peer, mut activity) = (self.peer(), self.activity());
        activity.last = Instant::now();
        activity.begun = true;
        if activity.place.is_none() {
            return Ok(None);
        }
        let mut table = self.0.connections.table();
        let (most, all) = (table.limits.stranger_calls, table.calls);
        let own = table.peers.entry(peer).or_default();
        if own.calls >= most || all >= most.saturating_mul(PEERS_WITH_CALLS) {
            table.forget_if_gone(peer);
            drop(table);
            self.0.connections.refusals.note(Refused::Calls, Some(peer));
            return Err(Refused::Calls);
        }
        own.calls += 1;
        table.calls += 1;
        activity.calls += 1;
        Ok(Some(StrangerCall(self.clone())))
    }

    /// Waits until a stranger's connection has had no request for too long: for `first` after its
    /// beginning, or for `idle` after the end of its last call.
    pub(crate) async fn overdue(&self, first: Duration, idle: Duration) {
        loop {
            let wait = {
                let activity = self.activity();
                let limit = if activity.begun { idle } else { first };
                match (activity.place, activity.calls) {
                    (None, _) => None,
                    (Some(_), 0) => Some(limit.saturating_sub(activity.last.elapsed())),
                    (Some(_), _) => Some(limit),
                }
            };
            match wait {
                None => std::future::pending().await,
                Some(Duration::ZERO) => return,
                Some(wait) => tokio::time::sleep(wait).await,
            }
        }
    }

    fn peer(&self) -> IpAddr {
        network(self.0.address.ip())
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.0.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let peer = network(self.address.ip());
        let activity = self.activity.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut table = self.connections.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = activity.place {
            table.leave(peer, place);
            return;
        }
        table.known -= 1;
        if let Some(own) = table.peers.get_mut(&peer) {
            own.known -= 1;
        }
        table.forget_if_gone(peer);
    }
}

impl Drop for StrangerCall {
    fn drop(&mut self) {
        let Self(connection) = self;
        let (peer, mut activity) = (connection.peer(), connection.activity());
        activity.calls -= 1;
        activity.last = Instant::now();
        let mut table = connection.0.connections.table();
        table.calls -= 1;
        if let Some(own) = table.peers.get_mut(&peer) {
            own.calls -= 1;
        }
        table.forget_if_gone(peer);
    }
}

/// The network that counts as one peer: a single IPv4 address, or the IPv6 prefix that a provider
/// assigns to one customer.
pub(super) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(peer) => IpAddr::V6(Ipv6Addr::from_bits(peer.to_bits() >> 64 << 64)),
        peer => peer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(change: fn(&mut PortConfig)) -> Connections {
        let mut config = PortConfig::default();
        change(&mut config);
        Connections::new(&config, Arc::default())
    }

    fn peer(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 1))
    }

    #[test]
    fn the_oldest_stranger_of_the_peer_is_closed_and_nobody_with_a_secret() {
        let connections = connections(|config| config.peer_strangers = 3);
        let agent = connections.admit(peer(1)).expect("room");
        agent.vouch();
        let other = connections.admit(peer(2)).expect("room");
        let strangers: Vec<Connection> = (0..3).map(|_| connections.admit(peer(1)).expect("room")).collect();
        strangers[0].advance();
        let newest = connections.admit(peer(1)).expect("room");
        let closed: Vec<bool> = strangers.iter().map(|stranger| stranger.0.close.is_cancelled()).collect();
        assert_eq!(closed, [false, true, false], "the first has advanced");
        assert!(!agent.0.close.is_cancelled() && !other.0.close.is_cancelled() && !newest.0.close.is_cancelled());
        assert_eq!(connections.counts(), (4, 1));
        strangers[1].vouch();
        assert_eq!(connections.counts(), (4, 1), "it was closed already");
        drop((agent, other, strangers, newest));
        assert_eq!(connections.counts(), (0, 0));
        assert!(connections.table().peers.is_empty());
    }

    #[test]
    fn strangers_of_many_peers_give_way_and_agents_do_not() {
        let connections = connections(|config| (config.connections, config.peer_connections) = (4, 3));
        let agents: Vec<Connection> = (0..3).map(|_| connections.admit(peer(1)).expect("room")).collect();
        agents.iter().for_each(Connection::vouch);
        assert!(connections.admit(peer(1)).is_none(), "this peer has its share");
        let stranger = connections.admit(peer(2)).expect("room");
        let next = connections.admit(peer(3)).expect("the stranger's place");
        assert!(stranger.0.close.is_cancelled());
        next.vouch();
        assert!(connections.admit(peer(4)).is_none(), "all places belong to agents");
    }

    #[test]
    fn calls_of_strangers_are_few_and_those_of_others_are_not_counted() {
        let connections = connections(|config| config.stranger_calls = 2);
        let (first, second) = (connections.admit(peer(1)).expect("room"), connections.admit(peer(1)).expect("room"));
        let calls =
            [first.call().expect("room").expect("a stranger"), second.call().expect("room").expect("a stranger")];
        assert_eq!(first.call().expect_err("full"), Refused::Calls);
        assert!(connections.admit(peer(2)).expect("room").call().is_ok(), "another peer");
        second.vouch();
        assert!(second.call().expect("no limit").is_none());
        drop(calls);
        assert!(first.call().is_ok());
        assert_eq!(connections.table().calls, 0);
    }

    #[test]
    fn an_ipv6_network_is_one_peer() {
        let same = |one: &str, other: &str| {
            network(one.parse().expect("an address")) == network(other.parse().expect("an address"))
        };
        assert!(same("2001:db8:1:2::1", "2001:db8:1:2:ffff::9") && same("::ffff:192.0.2.1", "192.0.2.1"));
        assert!(!same("2001:db8:1:2::1", "2001:db8:1:3::1") && !same("192.0.2.1", "192.0.2.2"));
    }

    #[tokio::test]
    async fn a_stranger_without_a_request_is_overdue_and_one_with_an_open_call_is_not() {
        let connections = connections(|_| ());
        let (first, idle) = (Duration::from_millis(20), Duration::from_millis(40));
        let connection = connections.admit(peer(1)).expect("room");
        connection.overdue(first, idle).await;
        let call = connection.call().expect("room");
        let waited = tokio::time::timeout(4 * idle, connection.overdue(first, idle)).await;
        assert!(waited.is_err(), "a call is open");
        drop(call);
        connection.vouch();
        let waited = tokio::time::timeout(4 * idle, connection.overdue(first, idle)).await;
        assert!(waited.is_err(), "agents have no time limit");
    }
}
