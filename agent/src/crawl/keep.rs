//! Keeps a crawl: on this agent's disk, from where it goes on after a restart, and once in a while as a checkpoint that travels to
//! the scheduler, from where another agent may go on.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::frontier::{Frontier, OpenError, checkpoint};
use super::politeness::Manners;
pub use checkpoint::Checkpoint;

/// How often a crawl's checkpoint is offered: what is lost with an agent is at most so much work.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);
/// How long after a failure to write the next attempt is made.
const RETRY: Duration = Duration::from_secs(1);

/// What the scheduler is told of a crawl that is not over.
#[derive(Debug, Clone)]
pub struct Standing {
    /// From where another agent may go on.
    pub checkpoint: Checkpoint,
    /// How the crawl and its site get along.
    pub manners: Manners,
    /// The newest error; empty when there was none.
    pub last_error: String,
}

/// Takes what is told. It must not block.
pub type Offer = Box<dyn Fn(Standing) + Send + Sync>;

/// Where a crawl is kept, and what is left of a former one.
#[derive(Default)]
pub struct Keep {
    /// The crawl's file. Without one it is kept nowhere.
    pub file: Option<PathBuf>,
    /// Where another agent stopped; empty when none did.
    pub checkpoint: Vec<u8>,
    /// Who is told how the crawl stands.
    pub offer: Option<Offer>,
}

/// Keeps a crawl that is under way.
pub(super) struct Keeper {
    offer: Option<Offer>,
    /// When a checkpoint was offered last, or the crawl began.
    offered: Instant,
    /// Whether writing fails at the moment.
    failing: bool,
    /// Whether the site is left alone, as was told last.
    paused: bool,
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
        Ok((frontier, Keeper { offer, offered: Instant::now(), failing: false, paused: false }))
    }
}

impl Keeper {
    /// After every step: writes it when that is due. While the disk refuses, the crawl waits.
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
        Ok(())
    }

    /// Whether the crawl's standing should be told: once a minute, and when a pause begins, in which nothing else would be.
    pub(super) fn is_due(&mut self, paused: bool) -> bool {
        let begins = paused && !std::mem::replace(&mut self.paused, paused);
        self.paused = paused;
        self.offer.is_some() && (begins || self.offered.elapsed() >= CHECKPOINT_EVERY)
    }

    /// Tells it.
    pub(super) fn tell(&mut self, standing: Standing) {
        if let Some(offer) = &self.offer {
            offer(standing);
            self.offered = Instant::now();
        }
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
