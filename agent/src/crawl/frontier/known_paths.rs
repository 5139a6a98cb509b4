//! The known paths of a site, the other sites that it links to, and the crawl's totals: everything
//! in a frontier except its queue. Decides which paths may be queued.
//!
//! This module is pure. Applying the frames of a crawl's log in order rebuilds this state.

use std::collections::{BTreeSet, HashSet};

use super::fingerprint_set::SeenPaths;
use super::log::{CrawlTotals, LogFrame};
use super::queue_capacity::capacity;
use super::trap::Traps;
use crate::crawl::html::site_path::{Fingerprint, SitePath};

/// Maximum number of paths beyond the depth limit that are stored individually.
pub(super) const MAX_BEYOND: usize = 10_000;
/// Maximum number of links into crawler traps that are stored. A stored link is counted only once.
/// A site can have an endless number of such links. Links above the maximum take no memory, but are
/// counted each time they are found.
const MAX_TRAPS: u32 = 100_000;
pub(super) const FINGERPRINT: usize = 16;

/// The seen paths, and how many of them are queued and visited.
#[derive(Debug)]
pub(super) struct KnownPaths {
    max_depth: u32,
    capacity: u64,
    seen: SeenPaths,
    beyond: HashSet<Fingerprint>,
    traps: Traps,
    /// The names of other sites to which pages link.
    hosts: BTreeSet<String>,
    queued: u64,
    visited: u64,
    totals: CrawlTotals,
}

/// What to do with an offered path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OfferResult {
    New,
    /// Store the path in the list of paths beyond the depth limit.
    Beyond,
    /// The path leads into a trap. Store it, so that it is counted only once.
    Trap,
    LeftOut,
}

impl KnownPaths {
    pub(super) fn new(max_depth: u32, max_pages: u32) -> Self {
        Self {
            max_depth,
            capacity: capacity(max_pages),
            seen: SeenPaths::default(),
            beyond: HashSet::new(),
            traps: Traps::default(),
            hosts: BTreeSet::new(),
            queued: 0,
            visited: 0,
            totals: CrawlTotals::default(),
        }
    }

    pub(super) fn apply(&mut self, frame: &LogFrame) {
        for queued in &frame.queued {
            self.mark_seen(SitePath::fingerprint_of(&queued.path));
            // Called only so that the path counts towards the limit on a calendar's pages (`trap`).
            // The result does not matter, because the path was allowed when it was found.
            self.traps.allow(&queued.path);
            self.queued += 1;
        }
        fingerprints(&frame.known).for_each(|known| {
            self.mark_seen(known);
        });
        fingerprints(&frame.beyond).for_each(|beyond| {
            self.remember_beyond(beyond);
        });
        self.hosts.extend(frame.hosts.iter().cloned());
        self.visited += u64::from(frame.visited);
        self.totals = frame.totals;
    }

    /// Records the name of another site, unless `limit` names are already recorded. Returns `false`
    /// if the name need not be stored.
    pub(super) fn discover(&mut self, host: &str, limit: usize) -> bool {
        self.hosts.len() < limit && !self.hosts.contains(host) && self.hosts.insert(host.to_owned())
    }

    pub(super) const fn hosts(&self) -> &BTreeSet<String> {
        &self.hosts
    }

    pub(super) fn is_seen(&self, path: &SitePath) -> bool {
        self.seen.contains(path.fingerprint().as_u128())
    }

    /// Decides what to do with a path found at `depth`.
    pub(super) fn offer(&mut self, path: &SitePath, depth: u32) -> OfferResult {
        let fingerprint = path.fingerprint();
        if self.seen.contains(fingerprint.as_u128()) {
            return OfferResult::LeftOut;
        }
        if depth > self.max_depth {
            return if self.remember_beyond(fingerprint) { OfferResult::Beyond } else { OfferResult::LeftOut };
        }
        if self.waiting() >= self.capacity {
            self.totals.dropped = true;
            return OfferResult::LeftOut;
        }
        if !self.traps.allow(path.as_str()) {
            self.totals.trapped = self.totals.trapped.saturating_add(1);
            if self.totals.trapped > MAX_TRAPS {
                return OfferResult::LeftOut;
            }
            self.mark_seen(fingerprint);
            return OfferResult::Trap;
        }
        self.mark_seen(fingerprint);
        self.queued += 1;
        OfferResult::New
    }

    /// Stores a path without queueing it. Returns `false` if it was seen before.
    pub(super) fn mark_known(&mut self, path: &SitePath) -> bool {
        self.mark_seen(path.fingerprint())
    }

    /// Records the visit to the path at the head of the queue.
    pub(super) const fn visit(&mut self) {
        self.visited += 1;
    }

    pub(super) const fn visited(&self) -> u64 {
        self.visited
    }

    pub(super) const fn waiting(&self) -> u64 {
        self.queued.saturating_sub(self.visited)
    }

    pub(super) const fn totals(&self) -> &CrawlTotals {
        &self.totals
    }

    pub(super) const fn totals_mut(&mut self) -> &mut CrawlTotals {
        &mut self.totals
    }

    /// Whether some paths were found only beyond the depth limit.
    pub(super) fn has_beyond(&self) -> bool {
        self.totals.beyond || !self.beyond.is_empty()
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.seen.count()
    }

    fn mark_seen(&mut self, fingerprint: Fingerprint) -> bool {
        self.beyond.remove(&fingerprint);
        self.seen.insert(fingerprint.as_u128())
    }

    /// Returns `false` if the path need not be stored.
    fn remember_beyond(&mut self, fingerprint: Fingerprint) -> bool {
        if self.beyond.len() < MAX_BEYOND {
            return self.beyond.insert(fingerprint);
        }
        self.totals.beyond |= !self.beyond.contains(&fingerprint);
        false
    }
}

pub(super) fn fingerprints(bytes: &[u8]) -> impl Iterator<Item = Fingerprint> {
    let (whole, _) = bytes.as_chunks::<FINGERPRINT>();
    whole.iter().map(|bytes| Fingerprint::from_u128(u128::from_le_bytes(*bytes)))
}

/// Appends a path's fingerprint to a frame's list.
pub(super) fn note(path: &SitePath, fingerprints: &mut Vec<u8>) {
    fingerprints.extend(path.fingerprint().as_u128().to_le_bytes());
}
