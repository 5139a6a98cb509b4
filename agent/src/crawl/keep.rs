//! Keeps a crawl: on this agent's disk, from where it goes on after a restart, and once in a while as a checkpoint that travels to
//! the scheduler, from where another agent may go on.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::frontier::{Frontier, OpenError, checkpoint};
pub use checkpoint::Checkpoint;

/// How often a crawl's checkpoint is offered: what is lost with an agent is at most so much work.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);
/// How long after a failure to write the next attempt is made.
const RETRY: Duration = Duration::from_secs(1);

/// Takes checkpoints. It must not block.
pub type Offer = Box<dyn Fn(Checkpoint) + Send + Sync>;

/// Where a crawl is kept, and what is left of a former one.
#[derive(Default)]
pub struct Keep {
    /// The crawl's file. Without one it is kept nowhere.
    pub file: Option<PathBuf>,
    /// Where another agent stopped; empty when none did.
    pub checkpoint: Vec<u8>,
    /// Who takes checkpoints.
    pub offer: Option<Offer>,
}

/// Keeps a crawl that is under way.
pub(super) struct Keeper {
    offer: Option<Offer>,
    /// When a checkpoint was offered last, or the crawl began.
    offered: Instant,
    /// Whether writing fails at the moment.
    failing: bool,
}

impl std::fmt::Debug for Keep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keep")
            .field("file", &self.file)
            .field("checkpoint", &self.checkpoint.len())
            .finish_non_exhaustive()
    }
}

impl Keep {
    /// The frontier of a crawl of `owner`: where the file or the checkpoint says, whichever is further.
    pub(super) async fn open(self, owner: &str, max_depth: u32, max_pages: u32) -> io::Result<(Frontier, Keeper)> {
        let Self { file, checkpoint, offer } = self;
        let owner = owner.to_owned();
        let open = move || open_blocking(file.as_deref(), &checkpoint, &owner, max_depth, max_pages);
        let frontier = tokio::task::spawn_blocking(open).await.map_err(io::Error::other)??;
        Ok((frontier, Keeper { offer, offered: Instant::now(), failing: false }))
    }
}

impl Keeper {
    /// After every step: writes it when that is due, and offers a checkpoint when that is. While the disk refuses, the crawl waits.
    pub(super) async fn step(&mut self, frontier: &mut Frontier) -> io::Result<()> {
        while frontier.is_due() {
            match frontier.write().await {
                Ok(()) => self.failing = false,
                Err(error) => {
                    if !self.failing {
                        tracing::error!(%error, "a crawl cannot be written down; it waits");
                    }
                    self.failing = true;
                    sleep(RETRY).await;
                }
            }
        }
        if self.offered.elapsed() >= CHECKPOINT_EVERY
            && let Some(offer) = &self.offer
        {
            offer(frontier.checkpoint().await?);
            self.offered = Instant::now();
        }
        Ok(())
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
            // Its crawl is being stopped and will not be asked again; this one is only not kept.
            Err(taken @ OpenError::Taken(_)) => {
                tracing::warn!(error = %taken, "a crawl is kept nowhere");
                Ok(None)
            }
            Err(OpenError::Io(_, error)) => Err(error),
        },
    };
    let mut frontier = open()?;
    let further = |frontier: &Option<Frontier>| {
        let here = frontier.as_ref().map_or(0, |frontier| frontier.spent().pages);
        checkpoint::pages(checkpoint).is_some_and(|pages| pages > here)
    };
    if checkpoint.is_empty() || !further(&frontier) {
        return frontier.map_or_else(|| Frontier::temporary(max_depth, max_pages), Ok);
    }
    if let (Some(file), Some(_)) = (file, frontier.take()) {
        std::fs::remove_file(file)?;
        frontier = open()?;
    }
    let mut frontier = frontier.map_or_else(|| Frontier::temporary(max_depth, max_pages), Ok)?;
    if let Err(error) = frontier.resume(checkpoint) {
        tracing::warn!(%error, "a crawl begins anew");
    }
    Ok(frontier)
}
