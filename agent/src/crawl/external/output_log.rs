//! Copies the output of an external crawler to its log file. If the output is long, its middle is
//! omitted. The end is kept, because it usually contains the errors.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Maximum bytes from the beginning of the output that are stored in the file. A crawler that
/// prints one line per page needs hours to exceed this maximum.
const HEAD: usize = 1 << 20;
/// Maximum bytes from the end of the output, which are kept in memory until the output is complete.
const TAIL: usize = 16 << 10;
const BUFFER: usize = 8 << 10;
/// Maximum bytes of the last line, which error messages quote.
const LAST_LINE: usize = 300;

/// How long the agent continues to read output after it has killed a crawler. The output usually
/// ends at once. Only a process that left the crawler's process group can keep the pipe open.
const LATE_OUTPUT: Duration = Duration::from_secs(1);

/// The output of one crawler.
#[derive(Debug)]
pub(super) struct OutputLog {
    /// `None` after a failed write. The output must still be read, or the crawler would block on a
    /// full pipe.
    file: Option<File>,
    head: usize,
    tail: VecDeque<u8>,
    /// Number of bytes that are neither in the head nor in the tail.
    omitted: u64,
    /// The newest bytes of the output, whether they are in the file or not.
    last: VecDeque<u8>,
}

impl OutputLog {
    pub(super) async fn create(file: &Path) -> io::Result<Self> {
        let file = Some(File::create(file).await?);
        Ok(Self { file, head: 0, tail: VecDeque::new(), omitted: 0, last: VecDeque::new() })
    }

    /// Copies until the output ends or cannot be read.
    pub(super) async fn copy(&mut self, mut output: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; BUFFER];
        while let Ok(count @ 1..) = output.read(&mut buffer).await {
            self.note(&buffer[..count]).await;
        }
    }

    async fn note(&mut self, bytes: &[u8]) {
        push_bounded(&mut self.last, bytes, LAST_LINE);
        let (head, rest) = bytes.split_at(bytes.len().min(HEAD - self.head));
        self.head += head.len();
        let dropped = push_bounded(&mut self.tail, rest, TAIL);
        self.omitted = self.omitted.saturating_add(dropped);
        self.write(head).await;
    }

    async fn write(&mut self, bytes: &[u8]) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write_all(bytes).await {
            tracing::warn!(%error, "cannot write the log of a crawler");
            self.file = None;
        }
    }

    /// Completes the file. Returns the last line that is not empty.
    pub(super) async fn finish(mut self) -> String {
        if self.omitted > 0 {
            self.write(format!("\n[{} bytes are omitted here]\n", self.omitted).as_bytes()).await;
        }
        let tail: Vec<u8> = std::mem::take(&mut self.tail).into();
        self.write(&tail).await;
        if let Some(file) = &mut self.file
            && let Err(error) = file.flush().await
        {
            tracing::warn!(%error, "cannot write the log of a crawler");
        }
        let last = String::from_utf8_lossy(self.last.make_contiguous()).into_owned();
        last.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default().to_owned()
    }
}

/// Appends bytes, and drops the oldest bytes beyond `max`. Returns how many it dropped.
fn push_bounded(queue: &mut VecDeque<u8>, bytes: &[u8], max: usize) -> u64 {
    queue.extend(bytes);
    let excess = queue.len().saturating_sub(max);
    queue.drain(..excess);
    u64::try_from(excess).unwrap_or(u64::MAX)
}

/// Copies a crawler's output to the log until the output ends, or until shortly after `closing` is
/// cancelled. The spawned tokio task returns the last line of the output.
pub(super) fn copy_output(mut log: OutputLog, output: Receiver, closing: &CancellationToken) -> JoinHandle<String> {
    let closing = closing.clone();
    tokio::spawn(async move {
        let late = async {
            closing.cancelled().await;
            sleep(LATE_OUTPUT).await;
        };
        tokio::select! {
            () = log.copy(output) => {}
            () = late => {}
        }
        log.finish().await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_long_output_keeps_its_beginning_and_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log");
        let mut log = OutputLog::create(&file).await.unwrap();
        let line = format!("{}\n", "x".repeat(99));
        let output = format!("first\n{}out of memory\n\n", line.repeat(20_000));
        log.copy(output.as_bytes()).await;
        assert_eq!(log.finish().await, "out of memory");
        let kept = std::fs::read_to_string(&file).unwrap();
        assert!(kept.starts_with("first\nxxx") && kept.ends_with("xxx\nout of memory\n\n"));
        let omitted = output.len() - HEAD - TAIL;
        assert!(kept.contains(&format!("\n[{omitted} bytes are omitted here]\n")));
        assert_eq!(kept.len(), HEAD + TAIL + format!("\n[{omitted} bytes are omitted here]\n").len());
    }

    #[tokio::test]
    async fn a_short_output_is_kept_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log");
        let mut log = OutputLog::create(&file).await.unwrap();
        log.copy("one\ntwo\n".as_bytes()).await;
        assert_eq!(log.finish().await, "two");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\n");
    }
}
