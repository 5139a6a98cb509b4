//! Keeps a crawl: on this agent's disk, from where it goes on after a restart, and once in a while as a checkpoint that travels to
//! the scheduler, from where another agent may go on.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::checkpoint::{self, State};
use super::{Frontier, OpenError, Spent};
use crate::crawl::politeness::RateState;
use crate::disk::folder::blocking;
use crate::warc::Recorder;
pub use checkpoint::Checkpoint;

/// How often a crawl's checkpoint is offered: what is lost with an agent is at most so much work.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);
/// How long after a failure to write the next attempt is made.
const RETRY: Duration = Duration::from_secs(1);

/// What the scheduler is told of a crawl that is not over.
#[derive(Debug, Clone)]
pub struct Standing {
    pub checkpoint: Checkpoint,
    pub rate_state: RateState,
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
    pub offer: Option<Offer>,
    /// What stores its pages. Without it none are.
    pub recorder: Option<Recorder>,
    pub watched: Option<watch::Sender<Progress>>,
    /// Cancelled when somebody else is to go on with it: it ends as one that is stopped, and rests before its site is another's.
    pub recalled: CancellationToken,
}

/// How far a crawl is, for whoever watches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    pub pages: u32,
    pub bytes: u64,
    pub queued: u64,
    pub errors: u32,
    /// Until when the site is left alone, if it is.
    pub paused_until: Option<SystemTime>,
}

pub(in crate::crawl) struct Keeper {
    offer: Option<Offer>,
    /// When a checkpoint was offered last, or the crawl began.
    offered: Instant,
    failing: bool,
    /// Whether the site is left alone, as was told last.
    paused: bool,
    watched: Option<watch::Sender<Progress>>,
}

impl Keep {
    /// The frontier of a crawl of `owner`: where the file or the checkpoint says, whichever is further.
    pub(in crate::crawl) async fn open(
        self,
        owner: &str,
        max_depth: u32,
        max_pages: u32,
    ) -> io::Result<(Frontier, Keeper)> {
        let Self { file, checkpoint, offer, recorder, watched, .. } = self;
        let owner = owner.to_owned();
        let open = move || open_blocking(file.as_deref(), &checkpoint, &owner, max_depth, max_pages);
        let mut frontier = blocking(open).await?;
        frontier.store_first(recorder);
        Ok((frontier, Keeper { offer, offered: Instant::now(), failing: false, paused: false, watched }))
    }
}

impl Keeper {
    /// After every step: writes it when that is due. While the disk refuses, the crawl waits.
    pub(in crate::crawl) async fn step(&mut self, frontier: &mut Frontier) {
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
    }

    pub(in crate::crawl) fn show(&self, spent: &Spent, queued: u64) {
        if let Some(watched) = &self.watched {
            let Spent { pages, bytes, errors, paused_until_unix_ms, .. } = *spent;
            let until = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(paused_until_unix_ms));
            let paused_until = until.filter(|_| paused_until_unix_ms > 0);
            watched.send_replace(Progress { pages, bytes, queued, errors, paused_until });
        }
    }

    /// Whether the crawl's standing should be told: once a minute, and when a pause begins, in which nothing else would be.
    pub(in crate::crawl) fn is_due(&mut self, paused: bool) -> bool {
        let begins = paused && !std::mem::replace(&mut self.paused, paused);
        self.paused = paused;
        self.offer.is_some() && (begins || self.offered.elapsed() >= CHECKPOINT_EVERY)
    }

    pub(in crate::crawl) fn tell(&mut self, standing: Standing) {
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
    let here = open()?;
    let state = match checkpoint {
        [] => None,
        bytes => {
            State::read(bytes).inspect_err(|error| tracing::warn!(%error, "what another agent did is not known")).ok()
        }
    };
    // One that fetched nothing may still know that the site asked to be left alone.
    let is_further =
        |state: &State| here.as_ref().is_none_or(|here| here.is_new() || state.pages() > here.spent().pages);
    let Some(state) = state.filter(is_further) else {
        return here.map_or_else(|| Frontier::temporary(max_depth, max_pages), Ok);
    };
    let mut frontier = match (file, here) {
        (Some(file), Some(here)) => {
            // Its lock goes with it.
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
