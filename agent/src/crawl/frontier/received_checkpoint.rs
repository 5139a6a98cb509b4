//! Reads the checkpoint of another agent, which may be malicious: decides what a checkpoint may
//! contain.

use std::io::Read as _;

use flate2::read::DeflateDecoder;
use prost::{Message as _, decode_length_delimiter};

use super::checkpoint::{MAX_BYTES, VERSION};
use super::known_paths::{FINGERPRINT, MAX_BEYOND};
use super::log::LogFrame;
use super::log_points::MAX_QUEUED;
use crate::crawl::budget::MAX_HOSTS;
use crate::crawl::html::site_path::SitePath;

/// Maximum inflated size of a checkpoint: the paths, each with up to nine bytes of encoding, the
/// fingerprints and the hosts.
const MOST_INFLATED: usize = 16 << 20;
/// Maximum bytes of the fingerprints of paths beyond the depth limit in a received checkpoint. An
/// agent sends at most a tenth of the fingerprints that it may store, plus those found on one page.
const MOST_BEYOND_RECEIVED: usize = 2 * MAX_BEYOND * FINGERPRINT;
/// Maximum length of a site's name: a host with scheme and port.
const MAX_SITE_NAME_BYTES: usize = 300;

#[derive(Debug, thiserror::Error)]
#[error("not a checkpoint: {0}")]
pub(in crate::crawl) struct BadCheckpoint(String);

#[derive(Debug)]
pub(in crate::crawl) struct CheckpointState(pub(super) LogFrame);

impl CheckpointState {
    pub(in crate::crawl) fn read(bytes: &[u8]) -> Result<Self, BadCheckpoint> {
        let bad = |what: &str| BadCheckpoint(what.to_owned());
        let (version, deflated) = bytes.split_first().ok_or_else(|| bad("it is empty"))?;
        if *version != VERSION {
            return Err(bad("its version is unknown"));
        }
        let limit = u64::try_from(MOST_INFLATED).expect("a length");
        let mut body = Vec::new();
        DeflateDecoder::new(deflated)
            .take(limit + 1)
            .read_to_end(&mut body)
            .map_err(|error| bad(&error.to_string()))?;
        if body.len() > MOST_INFLATED {
            return Err(bad("it is too long"));
        }
        // Check the numbers of queued paths and hosts before allocating memory for them. Another
        // agent made the checkpoint, and that agent may be malicious.
        let (queued, hosts) = counted(&body).ok_or_else(|| bad("its fields are invalid"))?;
        if queued > MAX_QUEUED {
            return Err(bad("it has too many queued paths"));
        }
        if hosts > u64::from(MAX_HOSTS) {
            return Err(bad("it has too many host names"));
        }
        let frame = LogFrame::decode(body.as_slice()).map_err(|error| bad(&error.to_string()))?;
        if frame.known.len() > MAX_BYTES || frame.beyond.len() > MOST_BEYOND_RECEIVED {
            return Err(bad("it has too many fingerprints"));
        }
        if frame.hosts.iter().any(|host| host.len() > MAX_SITE_NAME_BYTES) {
            return Err(bad("it has too long a host name"));
        }
        if frame.visited || frame.queued.iter().any(|queued| SitePath::stored(&queued.path).is_none()) {
            return Err(bad("it has an invalid path"));
        }
        Ok(Self(frame))
    }

    pub(in crate::crawl) const fn pages(&self) -> u32 {
        self.0.totals.pages
    }
}

/// The numbers of queued paths and of hosts in an encoded frame; `None` if the frame is invalid.
fn counted(mut frame: &[u8]) -> Option<(u64, u64)> {
    let (mut queued, mut hosts) = (0, 0);
    while !frame.is_empty() {
        let key = decode_length_delimiter(&mut frame).ok()?;
        let skipped = match key & 7 {
            0 => {
                decode_length_delimiter(&mut frame).ok()?;
                0
            }
            1 => 8,
            2 => decode_length_delimiter(&mut frame).ok()?,
            5 => 4,
            _ => return None,
        };
        frame = frame.get(skipped..)?;
        queued += u64::from(key >> 3 == LogFrame::QUEUED);
        hosts += u64::from(key >> 3 == LogFrame::HOSTS);
    }
    Some((queued, hosts))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::checkpoint::encode;
    use super::super::log::tests::write;
    use super::super::log::{CrawlTotals, FrontierLog, QueuedPath, first};
    use super::super::log_points::LogPoints;
    use super::*;

    const MOST: usize = 1 << 19;

    /// A checkpoint whose deflated content is `body`.
    fn of(body: &[u8]) -> Vec<u8> {
        [vec![VERSION], crate::testing::deflate(body)].concat()
    }

    fn refused(body: &[u8]) -> String {
        let checkpoint = of(body);
        assert!(checkpoint.len() <= MAX_BYTES, "it travels: {}", checkpoint.len());
        CheckpointState::read(&checkpoint).unwrap_err().to_string()
    }

    #[test]
    fn a_checkpoints_queued_paths_are_bounded() {
        let path = LogFrame { queued: vec![QueuedPath { path: "/".to_owned(), depth: 0 }], ..LogFrame::default() };
        let (totals, path) = (LogFrame::default().encode_to_vec(), path.encode_to_vec());
        let path = path.strip_suffix(totals.as_slice()).unwrap();
        let many = |number: usize| [path.repeat(number), totals.clone()].concat();
        let most = CheckpointState::read(&of(&many(MOST))).unwrap();
        assert_eq!(most.0.queued.len(), MOST);
        assert_eq!(refused(&many(MOST + 1)), "not a checkpoint: it has too many queued paths");
        // Each queued path takes two bytes, so the input is two megabytes longer than the maximum.
        assert_eq!(refused(&[2 << 3 | 2, 0].repeat(9 << 20)), "not a checkpoint: it is too long");
        assert_eq!(refused(&[2 << 3 | 2, 0].repeat(7 << 20)), "not a checkpoint: it has too many queued paths");
    }

    #[test]
    fn a_written_checkpoint_holds_no_more_paths_than_may_be_read() {
        let step = |visited, paths, pages| LogFrame {
            visited,
            queued: vec![QueuedPath { path: "/".to_owned(), depth: 0 }; paths],
            totals: CrawlTotals { pages, ..CrawlTotals::default() },
            ..LogFrame::default()
        };
        let (mut log, mut log_points) = (FrontierLog::temporary().unwrap(), LogPoints::new(first("")));
        let mut pages_and_paths_after = |step: LogFrame| {
            let range = log.push(&step);
            log_points.note(&step, &range, 1);
            write(&mut log);
            let (checkpoint, _) = encode(&log.reader(), &log_points, &BTreeSet::new()).unwrap();
            (checkpoint.pages, CheckpointState::read(&checkpoint.bytes).unwrap().0.queued.len())
        };
        assert_eq!(pages_and_paths_after(step(false, MOST, 1)), (1, MOST));
        assert_eq!(pages_and_paths_after(step(false, 1, 2)), (1, MOST), "of the moment before that");
        assert_eq!(pages_and_paths_after(step(true, 0, 3)), (3, MOST), "one was visited");
    }

    #[test]
    fn a_checkpoints_fingerprints_are_bounded() {
        let frame = |known, beyond| LogFrame { known: vec![7; known], beyond: vec![7; beyond], ..LogFrame::default() };
        let (known, beyond) = (MAX_BYTES, MOST_BEYOND_RECEIVED);
        assert!(CheckpointState::read(&of(&frame(known, beyond).encode_to_vec())).is_ok());
        for frame in [frame(known + 1, 0), frame(0, beyond + 1)] {
            assert_eq!(refused(&frame.encode_to_vec()), "not a checkpoint: it has too many fingerprints");
        }
    }

    #[test]
    fn a_checkpoints_host_names_are_bounded() {
        let frame = |hosts: Vec<String>| of(&LogFrame { hosts, ..LogFrame::default() }.encode_to_vec());
        let most = usize::try_from(MAX_HOSTS).unwrap();
        assert!(CheckpointState::read(&frame(vec!["a.cn".to_owned(); most])).is_ok());
        let error = |hosts| CheckpointState::read(&frame(hosts)).unwrap_err().to_string();
        assert_eq!(error(vec!["a".repeat(MAX_SITE_NAME_BYTES + 1)]), "not a checkpoint: it has too long a host name");
        assert_eq!(error(vec![String::new(); most + 1]), "not a checkpoint: it has too many host names");
        // Each empty host name takes two bytes, so the input has too many names but is not too
        // long.
        assert_eq!(refused(&[6 << 3 | 2, 0].repeat(7 << 20)), "not a checkpoint: it has too many host names");
    }

    #[test]
    fn the_counts_of_queued_paths_and_hosts_are_exact() {
        let queued = |path: &str| QueuedPath { path: path.to_owned(), depth: u32::MAX };
        let frame = LogFrame {
            visited: true,
            queued: ["", "/a", &"/long".repeat(99)].map(queued).to_vec(),
            known: vec![9; 64],
            beyond: vec![8; 32],
            totals: CrawlTotals { pages: u32::MAX, bytes: u64::MAX, ..CrawlTotals::default() },
            hosts: vec!["a.cn".to_owned(); 2],
        };
        let body = frame.encode_to_vec();
        assert_eq!(counted(&body), Some((3, 2)));
        assert_eq!(counted(&[]), Some((0, 0)));
        for wrong in [&body[..body.len() - 1], &[2 << 3 | 2, 5, 0], &[0xff], &[3], &[1 << 3 | 1, 0]] {
            assert_eq!(counted(wrong), None, "{wrong:?}");
        }
    }
}
