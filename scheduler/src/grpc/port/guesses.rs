//! Slows wrong secrets of every kind, for each peer and for all peers together, before they cause
//! work of the database.
//!
//! A peer may have a few secrets looked up at a time. A right secret makes room for the next at
//! once, a wrong one only after [`HOLD`]; further secrets of this peer wait, and are refused if they
//! wait too long. A caller that hangs up before the answer counts as wrong. Secrets that were right
//! before do not wait, so nobody who shares an address with a guesser is slowed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tonic::Status;

use super::connections::network;
use super::refusals::{Refusals, Refused};
use crate::config::PortConfig;
use crate::machine::secret::SecretHash;

/// How long a wrong secret counts against its peer.
pub(super) const HOLD: Duration = Duration::from_secs(8);
/// How long a wrong secret counts against all peers together.
const HOLD_OF_ALL: Duration = Duration::from_secs(1);
/// Maximum number of secrets of all peers that are looked up at a time, or counted as wrong. With
/// `HOLD_OF_ALL`, a thousand peers cause a few hundred short queries in a second.
const ALL: usize = 256;
/// Maximum time that a secret waits until it is looked up.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of secrets that are known as right. The oldest are forgotten.
const MOST_KNOWN: usize = 16_384;
/// Number of peers from which on peers without wrong secrets are forgotten.
const MANY_PEERS: usize = 1024;

/// Whether an error means that the presented secret was wrong.
pub(crate) trait Guess: Into<Status> {
    fn is_wrong(&self) -> bool;
}

/// The wrong secrets of the last seconds, and the secrets that were right.
#[derive(Debug)]
pub(crate) struct Guesses {
    hold: Duration,
    patience: Duration,
    of_peer: usize,
    /// A peer's places. They are kept alive by those who hold or await one of them.
    peers: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    all: Arc<Semaphore>,
    known: Mutex<Known>,
    refusals: Arc<Refusals>,
}

/// Hashes of secrets that were right, oldest first.
#[derive(Debug, Default)]
struct Known {
    hashes: HashSet<Arc<[u8]>>,
    order: VecDeque<Arc<[u8]>>,
}

/// The place of a secret that is being looked up. If this value is dropped before the secret proved
/// right, the place stays taken for a time.
#[derive(Debug)]
struct Place {
    taken: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
    hold: Duration,
}

impl Guesses {
    pub(super) fn new(config: &PortConfig, (hold, patience): (Duration, Duration), refusals: Arc<Refusals>) -> Self {
        Self {
            hold,
            patience,
            of_peer: usize::try_from(config.wrong_secrets).unwrap_or(usize::MAX),
            peers: Mutex::default(),
            all: Arc::new(Semaphore::new(ALL)),
            known: Mutex::default(),
            refusals,
        }
    }

    /// Looks a secret up as soon as its peer may have one looked up. The caller must not hold a
    /// database connection, because this function may wait for seconds.
    pub(crate) async fn check<T, E: Guess>(
        &self,
        kind: Refused,
        peer: Option<IpAddr>,
        secret: &SecretHash,
        looking_up: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Status> {
        let place = if self.known().hashes.contains(secret.as_bytes()) { None } else { Some(self.place(peer).await?) };
        match looking_up.await {
            Ok(found) => {
                self.known().learn(secret);
                place.into_iter().for_each(Place::free);
                Ok(found)
            }
            Err(wrong) if wrong.is_wrong() => {
                self.known().hashes.remove(secret.as_bytes());
                self.refusals.note(kind, peer);
                Err(wrong.into())
            }
            Err(failure) => {
                place.into_iter().for_each(Place::free);
                Err(failure.into())
            }
        }
    }

    async fn place(&self, peer: Option<IpAddr>) -> Result<Place, Status> {
        let places = self.places_of(peer);
        let taking = async {
            // The semaphores are never closed.
            let own = places.acquire_owned().await.ok()?;
            let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
            Some((own, all))
        };
        match timeout(self.patience, taking).await {
            Ok(Some(taken)) => Ok(Place { taken: Some(taken), hold: self.hold }),
            Ok(None) | Err(_) => {
                self.refusals.note(Refused::Slowed, peer);
                // Agents repeat an unavailable call soon: another program at their address may have
                // presented the wrong secrets.
                Err(Status::unavailable("too many wrong tokens or credentials came from this address: try again"))
            }
        }
    }

    fn places_of(&self, peer: Option<IpAddr>) -> Arc<Semaphore> {
        let peer = network(peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = peers.get(&peer).and_then(Weak::upgrade) {
            return places;
        }
        // Peers without wrong secrets are forgotten only before the map would grow.
        if peers.len() >= MANY_PEERS && peers.len() == peers.capacity() {
            peers.retain(|_, places| places.strong_count() > 0);
        }
        let places = Arc::new(Semaphore::new(self.of_peer));
        peers.insert(peer, Arc::downgrade(&places));
        places
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn learn(&mut self, secret: &SecretHash) {
        let hash: Arc<[u8]> = secret.as_bytes().into();
        if !self.hashes.insert(Arc::clone(&hash)) {
            return;
        }
        self.order.push_back(hash);
        if self.order.len() > MOST_KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.hashes.remove(&oldest);
        }
    }
}

impl Place {
    fn free(mut self) {
        self.taken = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((own, all)) = self.taken.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let hold = self.hold;
        runtime.spawn(async move {
            sleep(hold.min(HOLD_OF_ALL)).await;
            drop(all);
            sleep(hold.saturating_sub(HOLD_OF_ALL)).await;
            drop(own);
        });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tokio::time::Instant;
    use tonic::Code;

    use super::*;

    #[derive(Debug)]
    struct Wrong;

    impl From<Wrong> for Status {
        fn from(Wrong: Wrong) -> Self {
            Self::unauthenticated("wrong")
        }
    }

    impl Guess for Wrong {
        fn is_wrong(&self) -> bool {
            true
        }
    }

    const SHORT: Duration = Duration::from_secs(1);

    fn guesses() -> Guesses {
        let config = PortConfig { wrong_secrets: 4, ..PortConfig::default() };
        Guesses::new(&config, (SHORT, 3 * SHORT / 2), Arc::default())
    }

    async fn guess(guesses: &Guesses, last: u8, secret: &str, answer: Result<(), Wrong>) -> Code {
        let peer = Some(IpAddr::from([192, 0, 2, last]));
        let checked = guesses.check(Refused::Credential, peer, &SecretHash::of(secret), async { answer }).await;
        checked.err().map_or(Code::Ok, |status| status.code())
    }

    #[tokio::test]
    async fn a_peers_wrong_secrets_are_slowed_and_nobody_elses() {
        let guesses = guesses();
        assert_eq!(guess(&guesses, 1, "right", Ok(())).await, Code::Ok);
        let began = Instant::now();
        let codes = join_all((0..12).map(|_| guess(&guesses, 1, "wrong", Err(Wrong)))).await;
        let looked_up = codes.iter().filter(|code| **code == Code::Unauthenticated).count();
        let refused = codes.iter().filter(|code| **code == Code::Unavailable).count();
        assert_eq!((looked_up, refused), (8, 4), "four at once, four after a time, and no more in the patience");
        assert!(began.elapsed() >= 3 * SHORT / 2, "{:?}", began.elapsed());

        let began = Instant::now();
        assert_eq!(guess(&guesses, 1, "right", Ok(())).await, Code::Ok, "a right secret is known");
        assert_eq!(guess(&guesses, 2, "other", Ok(())).await, Code::Ok, "another peer");
        assert!(began.elapsed() < SHORT / 2, "{:?}", began.elapsed());
        assert_eq!(guess(&guesses, 1, "right", Err(Wrong)).await, Code::Unauthenticated, "it was removed");
        assert!(!guesses.known().hashes.contains(SecretHash::of("right").as_bytes()));
    }

    #[tokio::test]
    async fn right_secrets_of_one_peer_do_not_wait_and_those_who_hang_up_count_as_wrong() {
        let guesses = guesses();
        let began = Instant::now();
        let secrets: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let codes = join_all(secrets.iter().map(|secret| guess(&guesses, 1, secret, Ok(())))).await;
        assert!(codes.iter().all(|code| *code == Code::Ok) && began.elapsed() < SHORT / 2);
        for _ in 0..4 {
            let peer = Some(IpAddr::from([192, 0, 2, 1]));
            let secret = SecretHash::of("new");
            let never = std::future::pending::<Result<(), Wrong>>();
            let left = timeout(Duration::from_millis(1), guesses.check(Refused::Credential, peer, &secret, never));
            assert!(left.await.is_err());
        }
        let began = Instant::now();
        assert_eq!(guess(&guesses, 1, "next", Ok(())).await, Code::Ok);
        assert!(began.elapsed() > SHORT / 2, "all places are taken by those who hung up");
    }
}
