//! Opens the frontier of a crawl from this agent's disk, or from the checkpoint of another agent.

use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::log::LogError;
use super::paths_to_visit::Frontier;
use super::received_checkpoint::CheckpointState;
use super::state_writer::{CrawlProgress, SnapshotSink, StateWriter};
use crate::disk::folder::blocking;
use crate::warc::Recorder;

/// Where to store a crawl's state and pages, and the checkpoint from which the crawl resumes.
#[derive(Default)]
pub struct CrawlStorage {
    /// The file for the crawl's state; if `None`, the state is not stored.
    pub file: Option<PathBuf>,
    /// The checkpoint that the scheduler sent with the lease; empty if there is none.
    pub checkpoint: Vec<u8>,
    pub on_snapshot: Option<SnapshotSink>,
    /// Stores the pages; if `None`, no pages are stored.
    pub recorder: Option<Recorder>,
    pub progress: Option<watch::Sender<CrawlProgress>>,
    /// Cancelled when another agent is to resume the crawl. The crawl then sends no more requests,
    /// waits out the request interval, and ends.
    pub preempted: CancellationToken,
}

impl CrawlStorage {
    /// Opens the frontier of `owner`'s crawl from the file or from the checkpoint, whichever has
    /// progressed further.
    pub(in crate::crawl) async fn open(
        self,
        owner: &str,
        max_depth: u32,
        max_pages: u32,
    ) -> io::Result<(Frontier, StateWriter)> {
        let Self { file, checkpoint, on_snapshot, recorder, progress, .. } = self;
        let owner = owner.to_owned();
        let open = move || open_blocking(file.as_deref(), &checkpoint, &owner, max_depth, max_pages);
        let mut frontier = blocking(open).await?;
        frontier.store_first(recorder);
        Ok((frontier, StateWriter::new(on_snapshot, progress)))
    }
}

fn open_blocking(
    file: Option<&Path>,
    checkpoint: &[u8],
    owner: &str,
    max_depth: u32,
    max_pages: u32,
) -> io::Result<Frontier> {
    let open = || match file {
        None => Ok(None),
        Some(file) => match Frontier::open(file, owner, max_depth, max_pages) {
            Ok(frontier) => Ok(Some(frontier)),
            // An earlier crawl still has the file locked, but is being stopped. The new crawl runs
            // without storing its state.
            Err(taken @ LogError::Taken(_)) => {
                tracing::warn!(error = %taken, "a crawl's state is not stored");
                Ok(None)
            }
            Err(LogError::Io(_, error)) => Err(error),
        },
    };
    let here = open()?;
    let state = match checkpoint {
        [] => None,
        bytes => CheckpointState::read(bytes)
            .inspect_err(|error| tracing::warn!(%error, "cannot read another agent's checkpoint; its work is repeated"))
            .ok(),
    };
    // The checkpoint is used if the local frontier is new, or if the checkpoint has more pages. If
    // neither the checkpoint nor the local frontier has a page, the local frontier is used, because
    // it may contain a pause that the site requires.
    let is_further =
        |state: &CheckpointState| here.as_ref().is_none_or(|here| here.is_new() || state.pages() > here.totals().pages);
    let Some(state) = state.filter(is_further) else {
        return here.map_or_else(|| Frontier::temporary(max_depth, max_pages), Ok);
    };
    let mut frontier = match (file, here) {
        (Some(file), Some(here)) => {
            // Release the file's lock before overwriting the file.
            drop(here);
            std::fs::remove_file(file)?;
            open()?
        }
        (_, here) => here,
    }
    .map_or_else(|| Frontier::temporary(max_depth, max_pages), Ok)?;
    frontier.resume(&state);
    Ok(frontier)
}
