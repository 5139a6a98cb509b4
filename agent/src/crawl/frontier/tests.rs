use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::checkpoint::{CheckpointState, MAX_BYTES};
use super::*;
use crate::crawl::html::site_urls::SitePath;

/// A path that is already in normal form, and so needs no parsing.
fn path(text: &str) -> SitePath {
    SitePath::stored(text).unwrap()
}

/// Runs a future on a new runtime, for property tests.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn resume(frontier: &mut Frontier, checkpoint: &[u8]) {
    frontier.resume(&CheckpointState::read(checkpoint).unwrap());
}

fn entry(text: &str, depth: u32) -> QueueEntry {
    QueueEntry { path: path(text), depth }
}

#[tokio::test]
async fn a_path_comes_out_once() {
    let mut frontier = Frontier::temporary(3, 10).unwrap();
    frontier.offer(&path("/a"), 1);
    frontier.offer(&path("/a"), 2);
    assert!(!frontier.mark_known(&path("/a")));
    assert!(frontier.mark_known(&path("/b")));
    frontier.offer(&path("/b"), 1);
    frontier.end_step();
    assert_eq!(frontier.next().await.unwrap(), Some(entry("/a", 1)));
    frontier.visited();
    assert_eq!(frontier.next().await.unwrap(), None);
}

#[test]
fn only_unreached_paths_count_as_beyond_the_depth() {
    let mut frontier = Frontier::temporary(1, 10).unwrap();
    frontier.offer(&path("/a"), 1);
    frontier.offer(&path("/a"), 2);
    assert!(!frontier.has_beyond());
    frontier.offer(&path("/far"), 2);
    assert!(frontier.has_beyond());
    assert!(frontier.mark_known(&path("/far")));
    assert!(!frontier.has_beyond());
}

#[tokio::test]
async fn paths_over_the_limit_are_dropped_and_recorded() {
    let mut frontier = Frontier::temporary(1, 1).unwrap();
    for number in 0..1004 {
        frontier.offer(&path(&format!("/{number}")), 1);
    }
    assert!(!frontier.totals().dropped);
    frontier.offer(&path("/0"), 1);
    assert!(!frontier.totals().dropped);
    frontier.offer(&path("/one-too-many"), 1);
    assert!(frontier.totals().dropped);
    frontier.end_step();
    for number in 0..1004 {
        assert_eq!(frontier.next().await.unwrap(), Some(entry(&format!("/{number}"), 1)));
        frontier.visited();
    }
    assert_eq!(frontier.next().await.unwrap(), None);
}

#[tokio::test]
async fn traps_are_left_out_and_counted_once_over_all_parts() {
    let mut frontier = Frontier::temporary(9, 1000).unwrap();
    frontier.offer(&path("/a/b/a/b/a/b"), 1);
    frontier.offer(&path("/a/b/a/b/a/b"), 1);
    frontier.offer(&path("/a/b"), 1);
    frontier.end_step();
    let mut next = Frontier::temporary(9, 1000).unwrap();
    resume(&mut next, &frontier.checkpoint().await.unwrap().bytes);
    next.offer(&path("/a/b/a/b/a/b"), 1);
    for frontier in [frontier, next] {
        assert_eq!((frontier.waiting(), frontier.totals().trapped, frontier.totals().dropped), (1, 1, false));
    }
}

#[test]
fn endless_traps_take_bounded_memory() {
    let mut frontier = Frontier::temporary(9, 1000).unwrap();
    for number in 0..200_000 {
        frontier.offer(&path(&format!("/{number}/a/a/a")), 1);
    }
    assert_eq!((frontier.totals().trapped, frontier.known.remembered()), (200_000, 100_000));
}

/// The links of a site of up to 60 pages, as pairs of page numbers: from, to.
type Links = Vec<(u32, u32)>;

/// Visits pages until `stop` pages have been visited, and returns them in order.
async fn walk(frontier: &mut Frontier, links: &Links, stop: usize) -> Vec<String> {
    if frontier.is_new() {
        frontier.offer(&path("/0"), 0);
        frontier.end_step();
    }
    let mut visited = Vec::new();
    while visited.len() < stop
        && let Some(entry) = frontier.next().await.unwrap()
    {
        let text = entry.path.as_str().to_owned();
        let page: u32 = text[1..].parse().unwrap();
        for (_, to) in links.iter().filter(|(from, _)| *from == page) {
            frontier.offer(&path(&format!("/{to}")), entry.depth + 1);
        }
        frontier.totals_mut().pages += 1;
        frontier.visited();
        visited.push(text);
    }
    visited
}

fn links() -> impl Strategy<Value = Links> {
    prop::collection::vec((0_u32..60, 0_u32..60), 0..300)
}

proptest! {
    // Bellman-Ford computes the expected depths of an uninterrupted crawl.
    #[test]
    fn a_walk_is_breadth_first_and_visits_each_reachable_page_once(links in links(), max_depth in 0_u32..6) {
        let mut frontier = Frontier::temporary(max_depth, 1000).unwrap();
        let visited = block_on(walk(&mut frontier, &links, usize::MAX));
        let mut distance = [u32::MAX; 60];
        distance[0] = 0;
        for _ in 0..60 {
            for (from, to) in &links {
                let next = distance[*from as usize].saturating_add(1);
                let known = &mut distance[*to as usize];
                *known = next.min(*known);
            }
        }
        let depths: Vec<u32> = visited.iter().map(|text| distance[text[1..].parse::<usize>().unwrap()]).collect();
        prop_assert!(depths.is_sorted() && depths.iter().all(|depth| *depth <= max_depth));
        prop_assert_eq!(visited.iter().collect::<HashSet<_>>().len(), visited.len());
        prop_assert_eq!(visited.len(), distance.iter().filter(|depth| **depth <= max_depth).count());
        let further = distance.iter().any(|depth| *depth > max_depth && *depth != u32::MAX);
        prop_assert_eq!(frontier.has_beyond(), further);
    }

    // An interrupted crawl skips no page, and repeats only visits that were not written, however
    // often the crawl is interrupted.
    #[test]
    fn a_crawl_resumes_after_a_restart_at_the_last_write(
        links in links(),
        runs in prop::collection::vec((1_usize..20, any::<bool>()), 0..6),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("1-1.crawl");
        let open = || Frontier::open(&file, "a.cn", 9, 1000).unwrap();
        let whole = block_on(walk(&mut Frontier::temporary(9, 1000).unwrap(), &links, usize::MAX));
        let mut kept: Vec<String> = Vec::new();
        for (stop, written) in runs {
            let mut frontier = open();
            let visited = block_on(walk(&mut frontier, &links, stop));
            if written {
                block_on(frontier.write()).unwrap();
                kept.extend(visited);
                prop_assert_eq!(frontier.totals().pages as usize, kept.len());
            }
        }
        let mut frontier = open();
        kept.extend(block_on(walk(&mut frontier, &links, usize::MAX)));
        prop_assert_eq!(kept, whole);
    }

    #[test]
    fn another_agent_resumes_from_a_checkpoint(links in links(), stops in prop::collection::vec(1_usize..20, 0..6)) {
        let whole = block_on(walk(&mut Frontier::temporary(9, 1000).unwrap(), &links, usize::MAX));
        let mut frontier = Frontier::temporary(9, 1000).unwrap();
        let mut visited = Vec::new();
        for stop in stops {
            visited.extend(block_on(walk(&mut frontier, &links, stop)));
            let checkpoint = block_on(frontier.checkpoint()).unwrap();
            prop_assert_eq!(checkpoint.pages as usize, visited.len());
            frontier = Frontier::temporary(9, 1000).unwrap();
            resume(&mut frontier, &checkpoint.bytes);
            prop_assert_eq!(frontier.totals().refetched, 0);
        }
        visited.extend(block_on(walk(&mut frontier, &links, usize::MAX)));
        prop_assert_eq!(visited, whole);
    }
}

/// A path that hardly compresses, because its characters come from a pseudo-random sequence.
fn long_path(page: u32, link: u32) -> String {
    let mut state = u64::from(page) << 32 | u64::from(link) | 1;
    let noise: String = (0..60)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            format!("{:08x}", state >> 32)
        })
        .collect();
    format!("/{page}/{link}/{noise}")
}

/// Visits a site on which every page links to twenty others, each with a path of about 500 bytes.
async fn walk_wide(frontier: &mut Frontier, visits: u32) -> HashMap<String, u32> {
    if frontier.is_new() {
        frontier.offer(&path("/"), 0);
        frontier.end_step();
    }
    let mut visited = HashMap::new();
    for _ in 0..visits {
        let Some(entry) = frontier.next().await.unwrap() else { break };
        let page = u32::from_be_bytes(*entry.path.fingerprint().as_u128().to_be_bytes().first_chunk().unwrap());
        (0..20).for_each(|link| frontier.offer(&path(&long_path(page, link)), entry.depth + 1));
        *visited.entry(entry.path.as_str().to_owned()).or_default() += 1;
        frontier.totals_mut().pages += 1;
        frontier.visited();
    }
    visited
}

#[tokio::test]
async fn a_checkpoint_of_a_large_queue_represents_an_earlier_moment_and_skips_nothing() {
    let mut frontier = Frontier::temporary(100, 1_000_000).unwrap();
    let first = walk_wide(&mut frontier, 1000).await;
    // Now 19,000 paths of 500 bytes are queued. Half of the bytes are random.
    let checkpoint = frontier.checkpoint().await.unwrap();
    assert!(checkpoint.bytes.len() <= MAX_BYTES, "{}", checkpoint.bytes.len());
    let mut second = Frontier::temporary(100, 1_000_000).unwrap();
    resume(&mut second, &checkpoint.bytes);
    let refetched = second.totals().refetched;
    assert!(refetched > 0 && refetched < 1000, "{refetched}");
    assert_eq!(second.totals().pages + refetched, 1000);
    let again = walk_wide(&mut second, refetched).await;
    assert!(
        again.keys().all(|page| first.contains_key(page)),
        "what is fetched first is what was fetched after the checkpoint's moment"
    );
    // Both frontiers now have the same queue.
    assert_eq!(second.waiting(), frontier.waiting());
    for _ in 0..500 {
        assert_eq!(second.next().await.unwrap(), frontier.next().await.unwrap());
    }
}

#[tokio::test]
async fn a_checkpoint_keeps_the_newest_visited_paths_and_reads_no_older_ones() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("1-1.crawl");
    let open = || Frontier::open(&file, "a.cn", 100, 1_000_000).unwrap();
    let mut frontier = open();
    let name = |number: u32| format!("/{number}");
    for number in 0..70_000 {
        frontier.offer(&path(&name(number)), 1);
        frontier.end_step();
        assert!(frontier.next().await.unwrap().is_some());
        frontier.visited();
    }
    frontier.write().await.unwrap();
    drop(frontier);
    // After a restart, overwrite the oldest visits in the file, which the checkpoint must not need.
    let mut frontier = open();
    let early = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&early, &[0xff; 100_000], 100).unwrap();
    let checkpoint = frontier.checkpoint().await.unwrap();
    assert!(checkpoint.bytes.len() <= MAX_BYTES, "{}", checkpoint.bytes.len());
    let mut second = Frontier::temporary(100, 1_000_000).unwrap();
    resume(&mut second, &checkpoint.bytes);
    let kept = (0..70_000).filter(|number| !second.is_unseen(&path(&name(*number)))).count();
    assert!((60_000..66_000).contains(&kept), "{kept}");
    assert!(!second.is_unseen(&path(&name(69_999))) && second.is_unseen(&path(&name(0))));
    assert_eq!(second.totals().refetched, 0);
}

#[tokio::test]
async fn the_visits_of_a_checkpoint_are_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut frontier = Frontier::open(&folder.path().join("1-1.crawl"), "a.cn", 9, 1000).unwrap();
    walk(&mut frontier, &vec![(0, 1), (0, 2)], 2).await;
    frontier.write().await.unwrap();
    assert!(!frontier.queue.log.is_synced());
    frontier.checkpoint().await.unwrap();
    assert!(frontier.queue.log.is_synced());
}

proptest! {
    // The crawler requests a page before it reads the previous page. So up to two paths that the
    // frontier has returned are not yet marked as visited.
    #[test]
    fn the_bytes_of_queued_paths_are_exact_before_and_after_a_restart(links in links(), stop in 1_usize..60, ahead in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("1-1.crawl");
        let mut frontier = Frontier::open(&file, "a.cn", 9, 1000).unwrap();
        block_on(walk(&mut frontier, &links, stop));
        let next = if ahead { block_on(frontier.next()).unwrap() } else { None };
        block_on(frontier.write()).unwrap();
        let known = frontier.log_points.waiting();
        let mut waiting: u64 = next.iter().map(|entry| checkpoint::queue_bytes(entry.path.as_str())).sum();
        while let Some(entry) = block_on(frontier.next()).unwrap() {
            waiting += checkpoint::queue_bytes(entry.path.as_str());
        }
        prop_assert_eq!(known, waiting);
        drop(frontier);
        prop_assert_eq!(Frontier::open(&file, "a.cn", 9, 1000).unwrap().log_points.waiting(), waiting);
    }
}
