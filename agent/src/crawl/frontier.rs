//! What is still to be fetched: breadth first, each path once, bounded.
//!
//! Pure. What is refused is remembered only as the fact that something was, because that fact alone decides whether the
//! crawl was complete.

use std::collections::{HashSet, VecDeque};

use super::site_path::{Fingerprint, SitePath};

/// The most paths that wait at once, whatever the page budget.
const MAX_WAITING: usize = 50_000;
/// The most bytes of paths that wait at once.
const MAX_WAITING_BYTES: usize = 2 * 1024 * 1024;
/// The most paths beyond the depth that are remembered one by one.
const MAX_BEYOND: usize = 10_000;

/// A path and how many links it is away from the start page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: SitePath,
    pub(super) depth: u32,
}

/// The queue of a breadth-first crawl.
#[derive(Debug)]
pub(super) struct Frontier {
    max_depth: u32,
    capacity: usize,
    waiting: VecDeque<Entry>,
    waiting_bytes: usize,
    seen: HashSet<Fingerprint>,
    beyond: HashSet<Fingerprint>,
    beyond_overflowed: bool,
    dropped: bool,
}

impl Frontier {
    /// An empty frontier, sized for a crawl of `max_pages`.
    pub(super) fn new(max_depth: u32, max_pages: u32) -> Self {
        let wanted = usize::try_from(max_pages).unwrap_or(usize::MAX).saturating_mul(4).saturating_add(1000);
        Self {
            max_depth,
            capacity: wanted.min(MAX_WAITING),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            seen: HashSet::new(),
            beyond: HashSet::new(),
            beyond_overflowed: false,
            dropped: false,
        }
    }

    /// Whether the path was neither queued nor claimed yet.
    pub(super) fn is_new(&self, path: &SitePath) -> bool {
        !self.seen.contains(&path.fingerprint())
    }

    /// Queues a path that was found `depth` links away from the start page, unless it is known, too far or too many.
    pub(super) fn offer(&mut self, path: SitePath, depth: u32) {
        let fingerprint = path.fingerprint();
        if self.seen.contains(&fingerprint) {
            return;
        }
        if depth > self.max_depth {
            self.remember_beyond(fingerprint);
            return;
        }
        let bytes = self.waiting_bytes + path.as_str().len();
        if self.waiting.len() >= self.capacity || bytes > MAX_WAITING_BYTES {
            self.dropped = true;
            return;
        }
        self.mark_seen(fingerprint);
        self.waiting_bytes = bytes;
        self.waiting.push_back(Entry { path, depth });
    }

    /// Takes a path that is to be fetched at once (a redirect's target); `false` when it is known already.
    pub(super) fn claim(&mut self, path: &SitePath) -> bool {
        self.mark_seen(path.fingerprint())
    }

    /// The next path to fetch.
    pub(super) fn next(&mut self) -> Option<Entry> {
        let entry = self.waiting.pop_front()?;
        self.waiting_bytes -= entry.path.as_str().len();
        Some(entry)
    }

    /// Notes that links were lost before they came here.
    pub(super) const fn note_dropped(&mut self) {
        self.dropped = true;
    }

    /// Whether links were lost for want of room.
    pub(super) const fn has_dropped(&self) -> bool {
        self.dropped
    }

    /// Whether there are paths beyond the depth that were not reached another way.
    pub(super) fn has_beyond(&self) -> bool {
        self.beyond_overflowed || !self.beyond.is_empty()
    }

    fn mark_seen(&mut self, fingerprint: Fingerprint) -> bool {
        self.beyond.remove(&fingerprint);
        self.seen.insert(fingerprint)
    }

    fn remember_beyond(&mut self, fingerprint: Fingerprint) {
        if self.beyond.len() < MAX_BEYOND {
            self.beyond.insert(fingerprint);
        } else {
            self.beyond_overflowed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::super::site_path::tests::site;
    use super::*;

    fn path(text: &str) -> SitePath {
        let site = site("http://example.cn");
        site.path(&site.root().join(text).unwrap()).unwrap()
    }

    #[test]
    fn a_path_comes_once() {
        let mut frontier = Frontier::new(3, 10);
        frontier.offer(path("/a"), 1);
        frontier.offer(path("/a"), 2);
        assert!(!frontier.claim(&path("/a")));
        assert!(frontier.claim(&path("/b")));
        frontier.offer(path("/b"), 1);
        assert_eq!(frontier.next(), Some(Entry { path: path("/a"), depth: 1 }));
        assert_eq!(frontier.next(), None);
    }

    #[test]
    fn only_unreached_paths_count_as_beyond_the_depth() {
        let mut frontier = Frontier::new(1, 10);
        frontier.offer(path("/a"), 1);
        frontier.offer(path("/a"), 2);
        assert!(!frontier.has_beyond());
        frontier.offer(path("/far"), 2);
        assert!(frontier.has_beyond());
        assert!(frontier.claim(&path("/far")));
        assert!(!frontier.has_beyond());
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_noted() {
        let mut frontier = Frontier::new(1, 1);
        for number in 0..1004 {
            frontier.offer(path(&format!("/{number}")), 1);
        }
        assert!(!frontier.has_dropped());
        frontier.offer(path("/0"), 1);
        assert!(!frontier.has_dropped());
        frontier.offer(path("/one-too-many"), 1);
        assert!(frontier.has_dropped());
        assert_eq!(std::iter::from_fn(|| frontier.next()).count(), 1004);
    }

    #[test]
    fn the_bytes_that_wait_are_bounded() {
        let mut frontier = Frontier::new(1, u32::MAX);
        let long = "x".repeat(2000);
        for number in 0..MAX_WAITING {
            frontier.offer(path(&format!("/{number}{long}")), 1);
        }
        assert!(frontier.has_dropped());
        let bytes: usize = std::iter::from_fn(|| frontier.next()).map(|entry| entry.path.as_str().len()).sum();
        assert!(bytes <= MAX_WAITING_BYTES && bytes > MAX_WAITING_BYTES - 2100, "{bytes}");
        assert_eq!(frontier.waiting_bytes, 0);
    }

    proptest! {
        // A random graph of up to 40 pages, walked as the crawler does.
        #[test]
        fn a_walk_is_breadth_first_and_visits_each_reachable_page_once(
            edges in prop::collection::vec((0_u32..40, 0_u32..40), 0..200),
            max_depth in 0_u32..6,
        ) {
            let mut frontier = Frontier::new(max_depth, 1000);
            frontier.offer(path("/0"), 0);
            let mut visited: HashMap<String, u32> = HashMap::new();
            let mut last_depth = 0;
            while let Some(entry) = frontier.next() {
                prop_assert!(entry.depth >= last_depth && entry.depth <= max_depth);
                last_depth = entry.depth;
                let text = entry.path.as_str().to_owned();
                prop_assert_eq!(visited.insert(text.clone(), entry.depth), None);
                for (_, to) in edges.iter().filter(|(from, _)| text == format!("/{from}")) {
                    frontier.offer(path(&format!("/{to}")), entry.depth + 1);
                }
            }
            // Bellman-Ford over the same graph gives the true distances.
            let mut distance = [u32::MAX; 40];
            distance[0] = 0;
            for _ in 0..40 {
                for (from, to) in &edges {
                    let next = distance[*from as usize].saturating_add(1);
                    let known = &mut distance[*to as usize];
                    *known = next.min(*known);
                }
            }
            let within = distance.iter().filter(|depth| **depth <= max_depth).count();
            prop_assert_eq!(visited.len(), within);
            for (text, depth) in &visited {
                prop_assert_eq!(distance[text[1..].parse::<usize>().unwrap()], *depth);
            }
            let further = distance.iter().any(|depth| *depth > max_depth && *depth != u32::MAX);
            prop_assert_eq!(frontier.has_beyond(), further);
        }
    }
}
