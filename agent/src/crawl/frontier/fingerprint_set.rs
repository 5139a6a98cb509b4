//! The set of fingerprints of a site's known paths. The set is exact and small, and entries are
//! never removed.
//!
//! This module is pure. The set is a hash table with open addressing and linear probing. The table
//! is divided into parts, and a full part grows by a quarter. A slot holds only a fingerprint. In a
//! set of at least a few thousand paths, 72 to 90 percent of the slots are taken, so a path takes
//! 17.9 to 22.4 bytes. A table that doubles would take up to 39 bytes per path, and half as much
//! again while it grows. A part consists of pieces of equal size, so that other parts can reuse the
//! pieces that one part frees when it grows. If each part were one piece, the freed memory would be
//! too small for any growing part, and a tenth of the set's size would remain unused. Fingerprints
//! are halves of a cryptographic digest, so their bits serve as the hash. The probability that any
//! two of ten million paths have the same fingerprint is 1.5 × 10^-25.

use crate::crawl::html::site_path::SitePath;

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
    use std::collections::HashSet;

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
