//! The known paths of a site, the other sites that it links to, and the crawl's totals: everything
//! in a frontier except its queue. Decides which paths may be queued, and how many may wait.
//!
//! Applying the frames of a crawl's log in order rebuilds this state.
//!
//! The set is a hash table with open addressing and linear probing. The table is divided into
//! parts, and a full part grows by a quarter. A slot holds only a fingerprint. In a set of at least
//! a few thousand paths, 72 to 90 percent of the slots are taken, so a path takes 17.9 to 22.4
//! bytes. A table that doubles would take up to 39 bytes per path, and half as much again while it
//! grows. A part consists of pieces of equal size, so that other parts can reuse the pieces that
//! one part frees when it grows. If each part were one piece, the freed memory would be too small
//! for any growing part, and a tenth of the set's size would remain unused. Fingerprints are halves
//! of a cryptographic digest, so their bits serve as the hash. The probability that any two of ten
//! million paths have the same fingerprint is 1.5 × 10^-25.

use std::collections::{BTreeSet, HashSet};

use super::log::{CrawlTotals, LogFrame};
use super::trap::Traps;
use crate::crawl::html::site_urls::{Fingerprint, SitePath};

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

/// Maximum number of queued paths, whatever the page budget. Each path takes a few hundred bytes on
/// disk and 22 bytes of memory.
const MAX_WAITING: u64 = 4_000_000;

/// Maximum number of queued paths of a crawl with this page budget.
fn capacity(max_pages: u32) -> u64 {
    // A failed request uses up a path but yields no page, so a crawl may need more paths than its
    // page budget.
    let wanted = u64::from(max_pages).saturating_mul(4).saturating_add(1000);
    wanted.min(MAX_WAITING)
}

/// Number of parts of a set. Only one part grows at a time, so at most a 64th of the set is in
/// memory twice.
const PARTS: usize = 64;
/// Minimum number of slots of a part that is not empty.
const LEAST_SLOTS: usize = 4;

/// Number of slots of a piece, which takes 4 KiB.
const PIECE: usize = 256;

#[derive(Debug)]
pub struct SeenPaths {
    parts: Vec<Part>,
}

/// A part of the set. Fingerprint 0 marks a free slot. A path with fingerprint 0 (none is known) is
/// stored as fingerprint 1.
#[derive(Debug, Default)]
struct Part {
    slots: Slots,
    taken: usize,
}

/// Slots, divided into pieces. All pieces except the last have [`PIECE`] slots.
#[derive(Debug, Default)]
struct Slots {
    pieces: Vec<Box<[u128]>>,
    len: usize,
}

impl Slots {
    /// Makes `len` free slots.
    fn free(len: usize) -> Self {
        let piece = |from: usize| vec![0; PIECE.min(len - from)].into_boxed_slice();
        Self { pieces: (0..len).step_by(PIECE).map(piece).collect(), len }
    }

    fn get(&self, at: usize) -> u128 {
        self.pieces[at / PIECE][at % PIECE]
    }

    fn set(&mut self, at: usize, key: u128) {
        self.pieces[at / PIECE][at % PIECE] = key;
    }

    fn bytes(&self) -> usize {
        self.len * size_of::<u128>() + self.pieces.capacity() * size_of::<Box<[u128]>>()
    }
}

impl Default for SeenPaths {
    fn default() -> Self {
        Self { parts: std::iter::repeat_with(Part::default).take(PARTS).collect() }
    }
}

impl SeenPaths {
    /// Adds a fingerprint. Returns `false` if it was present.
    pub fn insert(&mut self, fingerprint: u128) -> bool {
        let key = key(fingerprint);
        self.parts[part(key)].insert(key)
    }

    pub fn contains(&self, fingerprint: u128) -> bool {
        let key = key(fingerprint);
        self.parts[part(key)].find(key).is_ok()
    }

    pub fn count(&self) -> usize {
        self.parts.iter().map(|part| part.taken).sum()
    }

    /// The set's size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let slots: usize = self.parts.iter().map(|part| part.slots.bytes()).sum();
        size_of::<Self>() + self.parts.capacity() * size_of::<Part>() + slots
    }
}

fn key(fingerprint: u128) -> u128 {
    fingerprint.max(1)
}

/// The index of the part that stores a fingerprint. The index depends on the fingerprint's lowest
/// bits, which `home` does not use.
fn part(key: u128) -> usize {
    low_bits(key) % PARTS
}

fn low_bits(key: u128) -> usize {
    usize::try_from(key & 0xffff_ffff).expect("32 bits")
}

impl Part {
    /// The slot where the search for a fingerprint starts: the fingerprint's highest 64 bits,
    /// divided by 2^64 and multiplied by the number of slots.
    fn home(key: u128, slots: usize) -> usize {
        let fraction = key >> 64;
        let slots = u128::try_from(slots).expect("a number of slots");
        usize::try_from((fraction * slots) >> 64).expect("less than the slots")
    }

    /// The slot of a fingerprint (`Ok`), or the free slot at which to insert it (`Err`).
    fn find(&self, key: u128) -> Result<usize, usize> {
        if self.slots.len == 0 {
            return Err(0);
        }
        let mut at = Self::home(key, self.slots.len);
        loop {
            match self.slots.get(at) {
                0 => return Err(at),
                found if found == key => return Ok(at),
                _ => at = self.after(at),
            }
        }
    }

    const fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len { 0 } else { at + 1 }
    }

    fn insert(&mut self, key: u128) -> bool {
        let Err(mut free) = self.find(key) else { return false };
        // Grow before the part is full, because a search ends only at a free slot.
        if (self.taken + 1) * 10 > self.slots.len * 9 {
            self.grow();
            free = self.find(key).unwrap_or_else(|free| free);
        }
        self.slots.set(free, key);
        self.taken += 1;
        true
    }

    fn grow(&mut self) {
        let slots = (self.slots.len + self.slots.len / 4).max(LEAST_SLOTS).max(self.slots.len + 1);
        let former = std::mem::replace(&mut self.slots, Slots::free(slots));
        for key in former.pieces.iter().flatten().copied().filter(|key| *key != 0) {
            let free = self.find(key).unwrap_or_else(|free| free);
            self.slots.set(free, key);
        }
    }
}

/// The fingerprint that identifies a path in [`SeenPaths`].
pub fn fingerprint(path: &str) -> u128 {
    SitePath::fingerprint_of(path).as_u128()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng as _;

    use super::*;

    /// Fingerprints that often collide. Some hash to the last slots, so that their search wraps
    /// around.
    fn crowded(number: u16) -> u128 {
        let high = if number.is_multiple_of(2) { u128::from(u64::MAX) << 64 } else { u128::from(number) << 112 };
        high | (u128::from(number) << 6)
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_plain_set(numbers in prop::collection::vec(0_u16..200, 0..600)) {
            let (mut seen, mut plain) = (SeenPaths::default(), HashSet::new());
            for number in numbers {
                prop_assert_eq!(seen.insert(crowded(number)), plain.insert(number));
                prop_assert_eq!(seen.count(), plain.len());
            }
            for number in 0..200 {
                prop_assert_eq!(seen.contains(crowded(number)), plain.contains(&number));
            }
        }
    }

    #[test]
    fn a_path_costs_at_most_24_bytes_from_ten_thousand_paths_on() {
        let mut rng = rand::rngs::ChaCha8Rng::seed_from_u64(7);
        let mut seen = SeenPaths::default();
        for number in 1..=200_000_u32 {
            assert!(seen.insert(rng.random()));
            if number >= 10_000 && number % 997 == 0 {
                let bytes = seen.bytes() / usize::try_from(number).unwrap();
                assert!(bytes <= 24, "{bytes} bytes for each of {number}");
            }
        }
    }
}
