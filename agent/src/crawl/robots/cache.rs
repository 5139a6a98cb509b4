//! What robots.txt of each site said, for a day: a site that is crawled again, or gone on with, is not asked again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::origin::Origin;

/// How long a robots.txt may be used (RFC 9309, 2.4).
pub(in crate::crawl) const FRESH: Duration = Duration::from_secs(24 * 3600);
/// Bytes kept of all of them together; one is at most 500 KiB.
const MAX_BYTES: usize = 8 << 20;
/// What an entry takes beside its text, roughly: without it a million empty ones would cost nothing.
const ENTRY_BYTES: usize = 256;

/// The robots.txt of sites lately asked. Shared by all crawls of an agent.
#[derive(Debug, Default)]
pub struct RobotsCache {
    /// Never held across an await.
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: HashMap<Origin, Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    at: Instant,
    text: Option<Vec<u8>>,
}

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.text.as_ref().map_or(0, Vec::len)
    }
}

impl RobotsCache {
    /// What the site's robots.txt said, if that is fresh: when it was asked, and the text; `None` where there is no such file.
    pub(super) fn get(&self, origin: &Origin, now: Instant) -> Option<(Instant, Option<Vec<u8>>)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = kept.entries.get(origin)?;
        (now.saturating_duration_since(entry.at) < FRESH).then(|| (entry.at, entry.text.clone()))
    }

    /// Keeps what it said. What was asked longest ago makes room.
    pub(in crate::crawl) fn put(&self, origin: Origin, at: Instant, text: Option<Vec<u8>>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = Entry { at, text };
        kept.bytes += entry.bytes();
        if let Some(former) = kept.entries.insert(origin, entry) {
            kept.bytes -= former.bytes();
        }
        while kept.bytes > MAX_BYTES {
            let oldest = kept.entries.iter().min_by_key(|(_, entry)| entry.at).map(|(origin, _)| origin.clone());
            let Some(entry) = oldest.and_then(|oldest| kept.entries.remove(&oldest)) else { break };
            kept.bytes -= entry.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(number: usize) -> Origin {
        format!("http://s{number}.cn").parse().unwrap()
    }

    #[test]
    fn it_forgets_after_a_day() {
        let (cache, now) = (RobotsCache::default(), Instant::now());
        cache.put(origin(1), now, Some(b"x".to_vec()));
        cache.put(origin(2), now, None);
        let just = now + FRESH - Duration::from_secs(1);
        assert_eq!(cache.get(&origin(1), just), Some((now, Some(b"x".to_vec()))));
        assert_eq!(cache.get(&origin(2), just), Some((now, None)));
        assert_eq!(cache.get(&origin(1), now + FRESH), None);
        assert_eq!(cache.get(&origin(3), now), None);
    }

    #[test]
    fn it_is_bounded_and_keeps_the_newest() {
        let (cache, now) = (RobotsCache::default(), Instant::now());
        for number in 0..40 {
            let at = now + Duration::from_secs(u64::try_from(number).unwrap());
            cache.put(origin(number), at, Some(vec![b'#'; 500 << 10]));
            cache.put(origin(number), at, Some(vec![b'#'; 500 << 10]));
        }
        let kept = cache.kept.lock().unwrap();
        assert!(kept.bytes <= MAX_BYTES && kept.entries.len() == 16, "{} of {} bytes", kept.entries.len(), kept.bytes);
        assert_eq!(kept.bytes, kept.entries.values().map(Entry::bytes).sum::<usize>());
        assert!(kept.entries.contains_key(&origin(39)) && !kept.entries.contains_key(&origin(0)));
    }
}
