//! Caches a site's robots.txt for a day, so that other crawls and resumed crawls of the site need
//! not fetch it again.
//!
//! The total memory for files is limited, even if many sites send files of the maximum size. Small
//! files are cached, up to a total of [`MAX_BYTES`]. A large file is kept only while its crawl
//! runs, and the crawl must first get a permit from a budget of [`LARGE_BYTES`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::parser::RobotsFile;
use crate::net::age_ordered_map::AgeOrderedMap;
use crate::net::origin::Origin;

/// Maximum time that a robots.txt may be used after it was requested (RFC 9309, 2.4).
pub(in crate::crawl) const FRESH: Duration = Duration::from_secs(24 * 3600);
/// Maximum bytes of all cached files together.
const MAX_BYTES: usize = 8 << 20;
/// Approximate size in bytes of an entry without its rules. This size is added to the size of each
/// file, so the number of entries is limited even if all files are empty.
const ENTRY_BYTES: usize = 256;
/// A file above this size counts as large. Fewer than one file in a thousand is large. If two
/// thousand crawls each use a file that is not large, these files take at most 128 MiB.
const SMALL_BYTES: usize = 64 << 10;
/// Maximum total bytes of the large files in use.
const LARGE_BYTES: usize = 32 << 20;
/// Number of bytes per permit for large files.
const UNIT: usize = 1 << 10;

/// The parsed robots.txt of recently crawled sites. All crawls of an agent share this cache.
#[derive(Debug)]
pub struct RobotsCache {
    /// This lock is never held across an await.
    kept: Mutex<CacheState>,
    large: Arc<Semaphore>,
}

impl Default for RobotsCache {
    fn default() -> Self {
        Self { kept: Mutex::default(), large: Arc::new(Semaphore::new(LARGE_BYTES / UNIT)) }
    }
}

#[derive(Debug, Default)]
struct CacheState {
    entries: AgeOrderedMap<Origin, Instant, Option<Arc<RobotsFile>>>,
    bytes: usize,
}

fn bytes(entry: &Option<Arc<RobotsFile>>) -> usize {
    ENTRY_BYTES + entry.as_ref().map_or(0, |file| file.bytes())
}

impl RobotsCache {
    /// The cache's entry for a site, if it is fresh: the time at which robots.txt was requested,
    /// and the file. The file is `None` if the site has no robots.txt.
    pub(super) fn get(&self, origin: &Origin, now: Instant) -> Option<(Instant, Option<Arc<RobotsFile>>)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, file) = kept.entries.get(origin)?;
        (now.saturating_duration_since(at) < FRESH).then(|| (at, file.clone()))
    }

    /// Caches a file unless it is large. If there is too little room, evicts the files that were
    /// requested longest ago.
    pub(in crate::crawl) fn put(&self, origin: Origin, at: Instant, file: Option<Arc<RobotsFile>>) {
        if file.as_ref().is_some_and(|file| is_large(file)) {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += bytes(&file);
        if let Some(former) = kept.entries.insert(origin, at, file) {
            kept.bytes -= bytes(&former);
        }
        while kept.bytes > MAX_BYTES
            && let Some((_, oldest)) = kept.entries.pop_oldest()
        {
            kept.bytes -= bytes(&oldest);
        }
    }

    /// Waits for the memory permit for a large file. Returns `None` for a small file, which needs
    /// no permit.
    pub(super) async fn room_for(&self, file: &RobotsFile) -> Option<OwnedSemaphorePermit> {
        if !is_large(file) {
            return None;
        }
        let units = u32::try_from((file.bytes() / UNIT).min(LARGE_BYTES / UNIT)).unwrap_or(u32::MAX);
        // Never an error, because the semaphore is never closed.
        Arc::clone(&self.large).acquire_many_owned(units).await.ok()
    }
}

fn is_large(file: &RobotsFile) -> bool {
    file.bytes() > SMALL_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(number: usize) -> Origin {
        format!("http://s{number}.cn").parse().unwrap()
    }

    fn file(bytes: usize) -> Option<Arc<RobotsFile>> {
        let rule = format!("Disallow: /{}\n", "x".repeat(91));
        Some(Arc::new(RobotsFile::parse(rule.repeat(bytes / 100).as_bytes())))
    }

    #[test]
    fn it_forgets_after_a_day() {
        let (cache, now) = (RobotsCache::default(), Instant::now());
        cache.put(origin(1), now, file(100));
        cache.put(origin(2), now, None);
        let just = now + FRESH - Duration::from_secs(1);
        let known = |number, at| cache.get(&origin(number), at).map(|(at, file)| (at, file.map(|file| file.bytes())));
        assert_eq!(known(1, just), Some((now, Some(100))));
        assert_eq!(known(2, just), Some((now, None)));
        assert_eq!(known(1, now + FRESH), None);
        assert_eq!(known(3, now), None);
    }

    #[test]
    fn it_is_bounded_and_keeps_the_newest() {
        let (cache, now) = (RobotsCache::default(), Instant::now());
        let small = file(60_000);
        for number in 0..400 {
            let at = now + Duration::from_secs(u64::try_from(number).unwrap());
            cache.put(origin(number), at, small.clone());
            cache.put(origin(number), at, small.clone());
        }
        cache.put(origin(999), now, file(SMALL_BYTES + 100));
        let kept = cache.kept.lock().unwrap();
        assert!(kept.bytes <= MAX_BYTES && kept.entries.len() == 139, "{} of {} bytes", kept.entries.len(), kept.bytes);
        let entry = |number| kept.entries.get(&origin(number)).is_some();
        assert!(entry(399) && !entry(0) && !entry(999));
    }

    #[tokio::test]
    async fn large_files_wait_for_memory_and_small_ones_do_not() {
        let cache = RobotsCache::default();
        let most = RobotsFile::parse("Disallow: /\u{7f}\n".repeat(42_000).as_bytes());
        let mut rooms = Vec::new();
        while rooms.len() * most.bytes() + most.bytes() <= LARGE_BYTES {
            rooms.push(cache.room_for(&most).await.unwrap());
        }
        assert!(rooms.len() > 30, "{}", rooms.len());
        assert!(cache.room_for(&file(60_000).unwrap()).await.is_none());
        let mut waiting = std::pin::pin!(cache.room_for(&most));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        rooms.pop();
        assert!(futures_util::poll!(&mut waiting).is_ready());
    }
}
