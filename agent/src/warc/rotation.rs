//! Writes exchanges to one WARC file after another.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use rand::rngs::ChaCha8Rng;

use super::exchange::Exchange;
use super::member::Gzip;
use super::names;
use super::warc_file::Volume;
use crate::machine::clock;

/// Writes exchanges to one file after another, with functions that block the thread.
#[derive(Debug)]
pub(super) struct VolumeSeries {
    pub(super) folder: PathBuf,
    /// The agent's name, which is part of the file names.
    pub(super) name: String,
    /// Size in bytes at which a file is full. The next record then goes to a new file.
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

    /// Stores exchanges until the WARC file is full, but at least one if there is any. Returns the
    /// number of stored exchanges.
    pub(super) fn store<'a>(&mut self, exchanges: impl Iterator<Item = &'a Exchange>) -> io::Result<usize> {
        let mut stored = 0;
        for exchange in exchanges {
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

    /// Creates a file with an unused name. Names contain the time in seconds, so an earlier process
    /// may have used some names of the same second.
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

    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.volume.as_mut().map_or(Ok(()), Volume::sync)
    }

    pub(super) fn close(&mut self) -> io::Result<()> {
        if let Some(volume) = &mut self.volume {
            volume.close()?;
        }
        self.volume = None;
        Ok(())
    }
}
