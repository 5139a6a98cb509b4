//! Writes the exchanges that crawls hand over: one after another, on threads that may block on the
//! disk.
//!
//! While writes fail, or the disk has too little room, crawls pause, and the exchanges are kept and
//! tried again.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::exchange::Exchange;
use super::member::Gzip;
use super::names;
use super::volume::Volume;
use crate::disk::folder::blocking;
use crate::disk::free_space::{FreeSpaceLimit, free_bytes};
use crate::session::clock;

/// Maximum messages taken at once.
const BATCH: usize = 32;
/// How long to wait for more messages if no crawl awaits a reply: a thread is woken for many pages
/// rather than for each.
const LINGER: Duration = Duration::from_millis(50);
/// Interval of syncs and of looks at the disk: as often as crawls write their state.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Delay before the next attempt after a failed write.
const RETRY: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(1) };
/// Attempts to write the rest once the agent stops. Unwritten pages are fetched again.
const LAST_ATTEMPTS: u32 = 3;

#[derive(Debug)]
pub(super) enum Message {
    Exchange(Box<Exchange>),
    /// Reply when everything before it is passed to the system.
    Stored(oneshot::Sender<()>),
    /// Reply when everything before it is on the disk.
    Synced(oneshot::Sender<()>),
}

impl Message {
    /// Whether dropping it causes no disk I/O.
    fn is_in_memory(&self) -> bool {
        matches!(self, Self::Exchange(exchange) if exchange.body.is_in_memory())
    }
}

/// The files and their writer. It blocks.
#[derive(Debug)]
pub(super) struct VolumeSeries {
    pub(super) folder: PathBuf,
    /// Part of the files' names.
    pub(super) name: String,
    /// Size at which a file is full: the next record starts another.
    pub(super) max_file_bytes: u64,
    /// The number of the next file.
    number: u32,
    volume: Option<Volume>,
    gzip: Gzip,
    rng: ChaCha8Rng,
    _lock: File,
}

impl VolumeSeries {
    pub(super) fn new(folder: PathBuf, lock: File, name: String, max_file_bytes: u64) -> Self {
        let (volume, gzip, rng) = (None, Gzip::new(), rand::make_rng());
        Self { folder, name, max_file_bytes, number: 0, volume, gzip, rng, _lock: lock }
    }

    /// Handles the messages in order and removes the finished ones from `batch`. Exchanges that
    /// hold only memory go to `done`.
    fn work(&mut self, batch: &mut VecDeque<Message>, done: &mut Vec<Message>) -> io::Result<()> {
        while !batch.is_empty() {
            let stored = self.store(batch)?;
            done.extend(batch.drain(..stored).filter(Message::is_in_memory));
            if let Some(Message::Synced(_)) = batch.front() {
                self.sync()?;
            }
            if let Some(Message::Stored(sender) | Message::Synced(sender)) =
                batch.pop_front_if(|message| !matches!(message, Message::Exchange(_)))
            {
                // A crawl that no longer waits needs no reply.
                let _unheard = sender.send(());
            }
        }
        Ok(())
    }

    /// Stores the leading exchanges, as many as this file takes, and at least one if there is one;
    /// returns how many.
    fn store(&mut self, batch: &VecDeque<Message>) -> io::Result<usize> {
        let mut stored = 0;
        for message in batch {
            let Message::Exchange(exchange) = message else { break };
            let is_full = self.volume.as_ref().is_some_and(|volume| volume.len(&self.gzip) >= self.max_file_bytes);
            if is_full && stored > 0 {
                break;
            }
            if is_full {
                self.close()?;
            }
            let volume = match self.volume.take() {
                Some(volume) => volume,
                None => self.begin()?,
            };
            self.volume.insert(volume).append(exchange, &mut self.gzip, &mut self.rng)?;
            stored += 1;
        }
        if let Some(volume) = self.volume.as_mut().filter(|_| stored > 0) {
            volume.commit(&mut self.gzip)?;
        }
        Ok(stored)
    }

    /// Starts a file under an unused name: a process started in the same second may have used one.
    fn begin(&mut self) -> io::Result<Volume> {
        loop {
            let at = clock::wall();
            let stem = names::stem(&self.name, at, self.number);
            self.number = self.number.wrapping_add(1);
            match Volume::begin(&self.folder, &stem, at, &mut self.gzip, &mut self.rng) {
                Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => {}
                begun => return begun,
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.volume.as_mut().map_or(Ok(()), Volume::sync)
    }

    fn close(&mut self) -> io::Result<()> {
        if let Some(volume) = &mut self.volume {
            volume.close()?;
        }
        self.volume = None;
        Ok(())
    }
}

/// Receives exchanges from crawls, and has them written.
pub(super) struct Writer {
    pub(super) messages: mpsc::Receiver<Message>,
    pub(super) series: VolumeSeries,
    pub(super) space_limit: FreeSpaceLimit,
    pub(super) paused: watch::Sender<Option<String>>,
    pub(super) closing: CancellationToken,
}

impl Writer {
    /// Writes until it is closed, or all senders are gone.
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
            let work = move || {
                let mut stored = Vec::new();
                let worked = series.work(&mut batch, &mut stored);
                let worked = worked.and_then(|()| if is_tick { series.sync() } else { Ok(()) });
                let free = is_tick.then(|| free_bytes(&series.folder));
                (series, batch, stored, worked, free)
            };
            let (stored, done, free);
            (series, batch, stored, done, free) = match tokio::task::spawn_blocking(work).await {
                Ok(worked) => worked,
                Err(error) => {
                    return tracing::error!(%error, "the writer crashed; no page is stored until the agent restarts");
                }
            };
            // Free it on the thread that allocated it: two threads that free at once wait for each
            // other.
            drop(stored);
            failures = if done.is_ok() { 0 } else { failures + 1 };
            let folder = series.folder.display();
            full = match free {
                Some(Ok(free)) => space_limit.full(free).map(|full| format!("disk full: {folder} has {full}")),
                Some(Err(error)) => Some(format!("cannot read the free space at {folder}: {error}")),
                None => full,
            };
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

/// Takes the other waiting messages, and waits for a moment if no crawl awaits a reply.
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

/// Sets whether crawls pause, and logs a change.
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
