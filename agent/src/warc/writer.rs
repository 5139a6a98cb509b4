//! Writes what crawls hand over: one after another, on threads that may wait for the disk.
//!
//! While the disk refuses, or has too little room, crawls are told to pause and what was handed over is kept and tried again.

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
use crate::disk::room::{Room, free_bytes};
use crate::session::clock;

/// What is taken over at once at most.
const BATCH: usize = 32;
/// How long more is waited for where nobody waits: a thread is woken for many pages rather than for each.
const LINGER: Duration = Duration::from_millis(50);
/// How often the disk is waited for, and looked at: as often as crawls write down where they are.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How long after a failure to write the next attempt is made.
const RETRY: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(1) };
/// Attempts to write what is left once the agent stops. What cannot be written is fetched again.
const LAST_ATTEMPTS: u32 = 3;

#[derive(Debug)]
pub(super) enum Message {
    Exchange(Box<Exchange>),
    /// To be answered when everything before it is in the system's hands.
    Stored(oneshot::Sender<()>),
    /// To be answered when everything before it is on the disk.
    Synced(oneshot::Sender<()>),
}

impl Message {
    /// Whether dropping it does nothing to the disk.
    fn is_in_memory(&self) -> bool {
        matches!(self, Self::Exchange(exchange) if exchange.body.is_in_memory())
    }
}

/// The files, and what writes them. It blocks.
#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) folder: PathBuf,
    /// Goes into files' names.
    pub(super) name: String,
    /// A file of so many bytes is the last one's: the next record begins another.
    pub(super) max_file_bytes: u64,
    /// The number of the next file.
    number: u32,
    volume: Option<Volume>,
    gzip: Gzip,
    rng: ChaCha8Rng,
    _lock: File,
}

impl Shelf {
    pub(super) fn new(folder: PathBuf, lock: File, name: String, max_file_bytes: u64) -> Self {
        let (volume, gzip, rng) = (None, Gzip::new(), rand::make_rng());
        Self { folder, name, max_file_bytes, number: 0, volume, gzip, rng, _lock: lock }
    }

    /// Does what is asked, in order; what is done leaves `batch`. Exchanges that hold nothing but memory go to `done`.
    fn work(&mut self, batch: &mut VecDeque<Message>, done: &mut Vec<Message>) -> io::Result<()> {
        while !batch.is_empty() {
            let stored = self.store(batch)?;
            done.extend(batch.drain(..stored).filter(Message::is_in_memory));
            if let Some(Message::Synced(_)) = batch.front() {
                self.sync()?;
            }
            if let Some(Message::Stored(tell) | Message::Synced(tell)) =
                batch.pop_front_if(|message| !matches!(message, Message::Exchange(_)))
            {
                // Who does not wait any more has no use for the answer.
                let _unheard = tell.send(());
            }
        }
        Ok(())
    }

    /// Stores the exchanges that come first, as many as this file takes, and at least one if there is one; returns how many.
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

    /// Begins a file whose name nothing has: a process that was started in this second may have used it.
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

/// Takes what crawls hand over, and has it written.
pub(super) struct Writer {
    pub(super) messages: mpsc::Receiver<Message>,
    pub(super) shelf: Shelf,
    pub(super) room: Room,
    pub(super) paused: watch::Sender<Option<String>>,
    pub(super) closing: CancellationToken,
}

impl Writer {
    /// Writes until it is closed, or nobody is left who could hand over anything.
    pub(super) async fn run(self) {
        let Self { mut messages, mut shelf, mut room, paused, closing } = self;
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
                let worked = shelf.work(&mut batch, &mut stored);
                let worked = worked.and_then(|()| if is_tick { shelf.sync() } else { Ok(()) });
                let free = is_tick.then(|| free_bytes(&shelf.folder));
                (shelf, batch, stored, worked, free)
            };
            let (stored, done, free);
            (shelf, batch, stored, done, free) = match tokio::task::spawn_blocking(work).await {
                Ok(worked) => worked,
                Err(error) => return tracing::error!(%error, "nothing is stored any more"),
            };
            // Where its memory was taken: given back by two threads at once, they wait for each other.
            drop(stored);
            failures = if done.is_ok() { 0 } else { failures + 1 };
            let folder = shelf.folder.display();
            full = match free {
                Some(Ok(free)) => room.full(free).map(|full| format!("disk full: {folder} has {full}")),
                Some(Err(error)) => Some(format!("{folder} cannot be looked at: {error}")),
                None => full,
            };
            let failure = done.err().map(|error| format!("pages cannot be stored in {folder}: {error}"));
            tell(&paused, failure.or_else(|| full.clone()));
            if failures == 0 {
                continue;
            }
            if closing.is_cancelled() && failures >= LAST_ATTEMPTS {
                tracing::error!(
                    exchanges = batch.len(),
                    "the agent stops before everything is stored; it will be fetched again"
                );
                break;
            }
            sleep(RETRY).await;
        }
        if let Err(error) = blocking(move || shelf.close()).await {
            tracing::error!(%error, "a WARC file stays open; the next start closes it");
        }
    }
}

/// Takes what else there is, and waits for a moment if nobody else waits.
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

/// Tells crawls whether to pause, and the log when that changes.
fn tell(paused: &watch::Sender<Option<String>>, reason: Option<String>) {
    let changed = reason.is_some() != paused.borrow().is_some();
    match &reason {
        Some(reason) if changed => tracing::error!(reason, "crawls pause"),
        None if changed => tracing::info!("crawls go on: there is room for pages again"),
        _ => {}
    }
    paused.send_if_modified(|told| {
        let differs = *told != reason;
        *told = reason;
        differs
    });
}
