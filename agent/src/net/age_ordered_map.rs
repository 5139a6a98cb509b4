//! A map that finds its oldest entry without a scan, so that a map of limited size can cheaply
//! evict old entries. This module is pure.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

#[derive(Debug)]
pub(crate) struct AgeOrderedMap<K, T, V> {
    entries: HashMap<K, (T, u64, V)>,
    /// The keys, ordered by time. The number distinguishes entries with the same time.
    order: BTreeMap<(T, u64), K>,
    next: u64,
}

impl<K, T, V> Default for AgeOrderedMap<K, T, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }
}

impl<K: Clone + Eq + Hash, T: Copy + Ord, V> AgeOrderedMap<K, T, V> {
    pub(crate) fn get(&self, key: &K) -> Option<(T, &V)> {
        self.entries.get(key).map(|(at, _, value)| (*at, value))
    }

    /// Inserts an entry, and returns the value that the entry replaces.
    pub(crate) fn insert(&mut self, key: K, at: T, value: V) -> Option<V> {
        let number = self.next;
        self.next += 1;
        self.order.insert((at, number), key.clone());
        let (at, number, value) = self.entries.insert(key, (at, number, value))?;
        self.order.remove(&(at, number));
        Some(value)
    }

    pub(crate) fn pop_oldest(&mut self) -> Option<(T, V)> {
        let ((at, _), key) = self.order.pop_first()?;
        self.entries.remove(&key).map(|(_, _, value)| (at, value))
    }

    pub(crate) fn oldest(&self) -> Option<T> {
        self.order.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_a_key_has_one_entry() {
        let mut aged = AgeOrderedMap::default();
        for (key, at) in [("b", 2), ("a", 1), ("c", 2), ("a", 3)] {
            aged.insert(key, at, key);
        }
        assert_eq!((aged.len(), aged.get(&"a"), aged.oldest()), (3, Some((3, &"a")), Some(2)));
        let order: Vec<&str> = std::iter::from_fn(|| aged.pop_oldest()).map(|(_, value)| value).collect();
        assert_eq!((order.as_slice(), aged.len(), aged.order.len()), (&["b", "c", "a"][..], 0, 0));
    }

    #[test]
    fn evicting_takes_constant_time() {
        let mut aged = AgeOrderedMap::default();
        let begin = std::time::Instant::now();
        for number in 0..100_000_u64 {
            aged.insert(number, number, ());
            if aged.len() > 16_384 {
                aged.pop_oldest();
            }
        }
        // A scan of all entries for every eviction would take a hundred times as long.
        assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}
