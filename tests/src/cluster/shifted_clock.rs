//! Wall clocks that the lab can shift while their processes run, by means of libfaketime.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// Possible locations of libfaketime.
const LIBRARIES: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1"];

fn library() -> Option<&'static str> {
    LIBRARIES.into_iter().find(|library| Path::new(library).exists())
}

/// The wall clock of processes that run with [`ShiftedClock::environment`].
#[derive(Debug, Clone)]
pub struct ShiftedClock {
    file: PathBuf,
}

impl ShiftedClock {
    /// Why no clock can be shifted here; `None` if it can.
    pub fn missing() -> Option<&'static str> {
        library().is_none().then_some("libfaketime is not installed")
    }

    /// A clock that is right at first. `file` tells the processes the shift.
    pub fn new(file: PathBuf) -> anyhow::Result<Self> {
        let clock = Self { file };
        clock.shift(0)?;
        Ok(clock)
    }

    /// Sets the clock to the true time plus this number of seconds.
    pub fn shift(&self, seconds: i64) -> anyhow::Result<()> {
        // A process must never read half a file.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}\n")).with_context(|| format!("write {}", new.display()))?;
        std::fs::rename(&new, &self.file).with_context(|| format!("write {}", self.file.display()))
    }

    /// The variables of the processes. The boot clock is not shifted, because all processes must
    /// agree on it.
    pub fn environment(&self) -> anyhow::Result<Vec<(String, String)>> {
        let file = self.file.to_str().context("the clock's path is not text")?;
        let variables = [
            ("LD_PRELOAD", library().context("libfaketime is not installed")?),
            ("FAKETIME_TIMESTAMP_FILE", file),
            // With a cache, the processes of one server would differ for a second.
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("FAKETIME_DONT_RESET", "1"),
        ];
        Ok(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
    }
}
