//! Writes the exchanges of all crawls one after another. The writes run on tokio's threads for
//! blocking tasks.
//!
//! While writes fail, or the disk has too little free space, crawls pause. The writer keeps the
//! exchanges and retries.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::exchange::Exchange;
use super::rotation::VolumeSeries;
use crate::disk::folder::blocking;
use crate::machine::free_space::{FreeSpaceLimit, free_bytes};

/// Maximum number of messages to handle at once.
const BATCH: usize = 32;
/// Time to wait for further messages if no crawl awaits a reply. A thread is then woken once for
/// many pages instead of once per page.
const LINGER: Duration = Duration::from_millis(50);
/// Interval at which files are synced and the free space is checked. This interval equals the
/// interval at which crawls write their state.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Delay before the next attempt after a failed write.
const RETRY: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(1) };
/// Maximum number of attempts to write the last exchanges when the agent stops. Pages that stay
/// unwritten are fetched again.
const LAST_ATTEMPTS: u32 = 3;

#[derive(Debug)]
pub(super) enum Message {
    Exchange(Box<Exchange>),
    /// Asks for a reply once all messages before this one have been written to the file.
    Stored(oneshot::Sender<()>),
    /// Asks for a reply once all messages before this one have been synced.
    Synced(oneshot::Sender<()>),
}

impl Message {
    fn exchange(&self) -> Option<&Exchange> {
        match self {
            Self::Exchange(exchange) => Some(exchange),
            Self::Stored(_) | Self::Synced(_) => None,
        }
    }

    /// Whether the message can be dropped without disk I/O.
    fn is_in_memory(&self) -> bool {
        matches!(self, Self::Exchange(exchange) if exchange.body.is_in_memory())
    }
}

pub(super) struct Writer {
    pub(super) messages: mpsc::Receiver<Message>,
    pub(super) series: VolumeSeries,
    pub(super) space_limit: FreeSpaceLimit,
    pub(super) paused: watch::Sender<Option<String>>,
    pub(super) closing: CancellationToken,
}

impl Writer {
    /// Writes until the store is closed or all senders are dropped.
    pub(super) async fn run(self) {
        let Self { mut messages, mut series, mut space_limit, paused, closing } = self;
        let mut batch = VecDeque::new();
        let mut ticks = interval(SYNC_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut full, mut failures) = (None, 0);
        loop {
            let mut is_tick = false;
            if batch.is_empty() {
                tokio::select! {
                    message = messages.recv() => match message {
                        Some(message) => batch.push_back(message),
                        None => break,
                    },
                    () = closing.cancelled(), if !messages.is_closed() => messages.close(),
                    _ = ticks.tick() => is_tick = true,
                }
                gather(&mut messages, &mut batch).await;
            }
            let step = move || {
                let mut stored = Vec::new();
                let worked = work(&mut series, &mut batch, &mut stored);
                let worked = worked.and_then(|()| if is_tick { series.sync() } else { Ok(()) });
                let free = is_tick.then(|| free_bytes(&series.folder));
                (series, batch, stored, worked, free)
            };
            let (stored, done, free);
            (series, batch, stored, done, free) = match tokio::task::spawn_blocking(step).await {
                Ok(worked) => worked,
                Err(error) => {
                    return tracing::error!(%error, "the writer crashed; no page is stored until the agent restarts");
                }
            };
            // Free the exchanges here instead of on the blocking thread. If a thread frees memory
            // that another thread allocated, both threads need the allocator's lock.
            drop(stored);
            failures = if done.is_ok() { 0 } else { failures + 1 };
            full = match free {
                Some(free) => space_limit.unusable(&series.folder, free),
                None => full,
            };
            let folder = series.folder.display();
            let failure = done.err().map(|error| format!("pages cannot be stored in {folder}: {error}"));
            set_paused(&paused, failure.or_else(|| full.clone()));
            if failures == 0 {
                continue;
            }
            if closing.is_cancelled() && failures >= LAST_ATTEMPTS {
                tracing::error!(
                    exchanges = batch.len(),
                    "the agent stops before all pages are stored; they will be fetched again"
                );
                break;
            }
            sleep(RETRY).await;
        }
        if let Err(error) = blocking(move || series.close()).await {
            tracing::error!(%error, "a WARC file stays open; the next start closes it");
        }
    }
}

/// Handles the messages in order, and removes them from `batch`. Stored exchanges whose bodies are
/// in memory are moved to `done`, so that the caller can drop them on another thread. Blocks the
/// thread.
fn work(series: &mut VolumeSeries, batch: &mut VecDeque<Message>, done: &mut Vec<Message>) -> io::Result<()> {
    while !batch.is_empty() {
        let stored = series.store(batch.iter().map_while(Message::exchange))?;
        done.extend(batch.drain(..stored).filter(Message::is_in_memory));
        if let Some(Message::Synced(_)) = batch.front() {
            series.sync()?;
        }
        if let Some(Message::Stored(sender) | Message::Synced(sender)) =
            batch.pop_front_if(|message| !matches!(message, Message::Exchange(_)))
        {
            // Errors are ignored, because the crawl may have stopped waiting.
            let _unheard = sender.send(());
        }
    }
    Ok(())
}

/// Adds further waiting messages to `batch`. If no crawl awaits a reply, waits up to [`LINGER`] for
/// more.
async fn gather(messages: &mut mpsc::Receiver<Message>, batch: &mut VecDeque<Message>) {
    let mut lingered = pin!(sleep(LINGER));
    while !batch.is_empty() && batch.len() < BATCH {
        let nobody_waits = batch.iter().all(|message| matches!(message, Message::Exchange(_)));
        let more = if nobody_waits {
            tokio::select! {
                biased;
                more = messages.recv() => more,
                () = &mut lingered => None,
            }
        } else {
            messages.try_recv().ok()
        };
        match more {
            Some(message) => batch.push_back(message),
            None => break,
        }
    }
}

/// Sets whether crawls pause, and logs each change.
fn set_paused(paused: &watch::Sender<Option<String>>, reason: Option<String>) {
    let changed = reason.is_some() != paused.borrow().is_some();
    match &reason {
        Some(reason) if changed => tracing::error!(reason, "crawls pause"),
        None if changed => tracing::info!("crawls resume: pages can be stored again"),
        _ => {}
    }
    paused.send_if_modified(|current| {
        let differs = *current != reason;
        *current = reason;
        differs
    });
}
