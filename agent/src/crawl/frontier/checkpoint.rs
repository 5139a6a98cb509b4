//! The checkpoint of a crawl: its state, in a form small enough to send. Another agent resumes the
//! crawl from it.
//!
//! This module is pure, except for the log reader that it receives. A checkpoint is one deflated
//! frame with the queued paths and the fingerprints of paths that need not be fetched again. A
//! checkpoint takes at most [`MAX_BYTES`]. If the fingerprints do not fit, the oldest are omitted,
//! and their pages may be fetched again. If the queue does not fit, the checkpoint contains an
//! *earlier* state, whose queue did fit. The next agent repeats the visits after that state and
//! finds their links again, so no page is skipped. In the worst case the crawl starts from the
//! beginning. The time to make a checkpoint depends on its content, not on the crawl's length,
//! because `log_points` records where in the log to start.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use prost::Message as _;

use super::known_paths::{FINGERPRINT, fingerprints};
use super::log::{LogFrame, LogReader};
use super::log_points::{LogMark, LogPoint, LogPoints, SIZES};
use crate::crawl::html::site_path::SitePath;

/// Maximum size of a checkpoint.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Maximum bytes for the queue. The remaining bytes are for fingerprints, which do not compress.
const MAX_QUEUE_BYTES: usize = MAX_BYTES / 4 * 3;
const _: () = assert!(MAX_BYTES / FINGERPRINT == 1 << 16);
/// Bytes reserved for the encoding around the fingerprints.
const SLACK: usize = 4 << 10;
/// The first byte of a checkpoint: the version of the format.
pub(super) const VERSION: u8 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub bytes: Vec<u8>,
    pub pages: u32,
}

/// Encodes all `hosts` and the newest state whose queue fits. `reader` reads this state from the
/// log. Also returns the queue's size class: an index into the maximum queue sizes of
/// `log_points`, largest first.
pub(super) fn encode(
    reader: &LogReader,
    log_points: &LogPoints,
    hosts: &BTreeSet<String>,
) -> io::Result<(Checkpoint, usize)> {
    // If the queue has shrunk since the last checkpoint, the next larger size class may fit now.
    let mut size = log_points.size.saturating_sub(1);
    loop {
        let (point, from) = log_points.newest(size);
        let (mut frame, fingerprints) = state_at(reader, from, point)?;
        frame.beyond.clone_from(&log_points.beyond);
        frame.hosts = hosts.iter().cloned().collect();
        let again = u32::try_from(log_points.visited() - point.visited).unwrap_or(u32::MAX);
        frame.totals.refetched = frame.totals.refetched.saturating_add(again);
        let queue_bytes = deflate(&frame)?.len();
        // An empty queue always fits.
        if queue_bytes > MAX_QUEUE_BYTES && size + 1 < SIZES {
            size += 1;
            continue;
        }
        let kept = (MAX_BYTES - SLACK).saturating_sub(queue_bytes) / FINGERPRINT;
        let kept = fingerprints.len().saturating_sub(kept);
        frame.known = fingerprints.iter().skip(kept).flat_map(|print| print.to_le_bytes()).collect();
        return Ok((Checkpoint { bytes: deflate(&frame)?, pages: frame.totals.pages }, size));
    }
}

/// Compression level, 1 to 9. Fingerprints are random bytes. Level 1 would make fingerprints longer
/// by a twentieth; level 2 does not.
const LEVEL: u32 = 2;

fn deflate(frame: &LogFrame) -> io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(vec![VERSION], Compression::new(LEVEL));
    encoder.write_all(&frame.encode_to_vec())?;
    encoder.finish()
}

/// Reads the log from the mark `from`, and returns the state at the later `point`: a frame with the
/// queue, and the fingerprints of visited paths, oldest first. Drops the oldest fingerprints that
/// would not fit into a checkpoint.
fn state_at(reader: &LogReader, from: LogMark, point: LogPoint) -> io::Result<(LogFrame, VecDeque<u128>)> {
    let LogMark { mut offset, mut number } = from;
    let (mut state, mut known) = (LogFrame { totals: point.totals, ..LogFrame::default() }, VecDeque::new());
    let remember = |known: &mut VecDeque<u128>, print: u128| {
        if known.len() == MAX_BYTES / FINGERPRINT {
            known.pop_front();
        }
        known.push_back(print);
    };
    while offset < point.end
        && let Some((frame, next)) = reader.read(offset)?
    {
        for queued in frame.queued {
            if number < point.visited {
                remember(&mut known, SitePath::fingerprint_of(&queued.path).as_u128());
            } else {
                state.queued.push(queued);
            }
            number += 1;
        }
        fingerprints(&frame.known).for_each(|print| remember(&mut known, print.as_u128()));
        offset = next;
    }
    Ok((state, known))
}
