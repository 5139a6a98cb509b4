//! Locks on addresses, so that a machine with many names does not get one request a second for each
//! name.
//!
//! The scheduler gives the lock on an address to only one order at a time, across all agents, and
//! the order contains the address ([`AddressLock`]). If another order on this agent is using the
//! address, the new order waits for a few seconds ([`AddressLocks`]).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

/// Maximum time for which an order waits for the lock on its address. If the address has few sites,
/// the order usually gets the lock in time. If the address has many sites, waiting orders are
/// reported to the scheduler before they expire.
const WAIT: Duration = Duration::from_secs(5);
/// Above this number of locks, those that no order uses are removed.
const SWEPT_BEYOND: usize = 4096;

/// The address at which an order may be carried out. The scheduler sends at most one order at a
/// time for each address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressLock {
    /// Any address to which the name resolves.
    Anywhere,
    /// Only this address, if the name resolves to it.
    At(IpAddr),
    /// No address yet: the order only resolves the name, and sends no request.
    Nowhere,
}

impl AddressLock {
    /// Whether an order may be carried out at this address.
    pub(super) fn is_at(self, address: IpAddr) -> bool {
        match self {
            Self::Anywhere => true,
            Self::At(lock) => lock == address,
            Self::Nowhere => false,
        }
    }

    /// The address to try first, in case a name has several.
    pub(super) const fn address(self) -> Option<IpAddr> {
        match self {
            Self::At(address) => Some(address),
            Self::Anywhere | Self::Nowhere => None,
        }
    }
}

/// The locks of the orders that one agent is carrying out.
#[derive(Debug)]
pub(super) struct AddressLocks {
    pub(super) wait: Duration,
    /// A lock for each address. The outer lock is never held across an await.
    locks: Mutex<HashMap<IpAddr, Weak<tokio::sync::Mutex<()>>>>,
}

impl Default for AddressLocks {
    fn default() -> Self {
        Self { wait: WAIT, locks: Mutex::default() }
    }
}

impl AddressLocks {
    /// Waits for the lock on an address; `None` if it is not free in time.
    pub(super) async fn lock(&self, address: IpAddr) -> Option<OwnedMutexGuard<()>> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            if locks.len() > SWEPT_BEYOND {
                locks.retain(|_, lock| lock.strong_count() > 0);
            }
            let lock = locks.get(&address).and_then(Weak::upgrade).unwrap_or_default();
            locks.insert(address, Arc::downgrade(&lock));
            lock
        };
        tokio::time::timeout(self.wait, lock.lock_owned()).await.ok()
    }
}
