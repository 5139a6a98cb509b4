//! Holds the body of a response until it is stored. A small body is kept in memory, and a larger
//! one in an unnamed file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use crate::disk::folder::blocking;

/// Maximum bytes of one body in memory. A longer body is moved to a file. So the bodies of fifty
/// crawls take at most 12.5 MiB of memory.
const IN_MEMORY: usize = 256 << 10;
/// Number of bytes per read from the file.
const READ: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Body {
    folder: Arc<Path>,
    /// The file with the first part of the body; created when it is needed.
    file: Option<Arc<File>>,
    in_file: u64,
    /// Bytes that are being written to the file, after the first `in_file` bytes.
    moving: Option<Arc<Vec<u8>>>,
    memory: Vec<u8>,
    /// Length of `memory` at which its bytes are moved to the file.
    most: usize,
}

impl Body {
    /// An empty body. If the body grows too large for memory, its file is created in this folder.
    pub(super) const fn new(folder: Arc<Path>) -> Self {
        Self { folder, file: None, in_file: 0, moving: None, memory: Vec::new(), most: IN_MEMORY }
    }

    pub(super) fn len(&self) -> u64 {
        let moving = self.moving.as_ref().map_or(0, |moving| moving.len());
        self.in_file + u64::try_from(moving + self.memory.len()).expect("a length")
    }

    /// Adds a piece, even if the future is dropped before it completes. While writes to the file
    /// fail, the body grows in memory, up to the maximum size of a page.
    pub(super) async fn push(&mut self, piece: &[u8]) {
        self.memory.extend_from_slice(piece);
        if self.memory.len() < self.most || self.moving.is_some() {
            return;
        }
        let moving = Arc::new(std::mem::take(&mut self.memory));
        self.moving = Some(Arc::clone(&moving));
        let (folder, file, at) = (Arc::clone(&self.folder), self.file.clone(), self.in_file);
        let write = move || {
            let file = match file {
                Some(file) => file,
                None => Arc::new(tempfile::tempfile_in(folder)?),
            };
            file.write_all_at(&moving, at)?;
            io::Result::Ok(file)
        };
        let written = blocking(write).await;
        let Some(moved) = self.moving.take() else { return };
        match written {
            Ok(file) => {
                self.file = Some(file);
                self.in_file += u64::try_from(moved.len()).expect("a length");
                self.most = IN_MEMORY;
            }
            Err(error) => {
                tracing::warn!(%error,
                    "cannot write a page to a temporary file; it stays in memory until it is stored");
                let rest = std::mem::replace(&mut self.memory, Arc::unwrap_or_clone(moved));
                self.memory.extend(rest);
                self.most = self.memory.len() + IN_MEMORY;
            }
        }
    }

    pub(super) const fn is_in_memory(&self) -> bool {
        self.file.is_none()
    }

    /// Passes the whole body to `take`, in order. Blocks the thread.
    pub(super) fn read(&self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        if let Some(file) = &self.file {
            let mut buffer = vec![0; READ];
            let mut at = 0;
            while at < self.in_file {
                let left = usize::try_from(self.in_file - at).unwrap_or(READ).min(READ);
                file.read_exact_at(&mut buffer[..left], at)?;
                take(&buffer[..left])?;
                at += u64::try_from(left).expect("a length");
            }
        }
        self.moving.iter().try_for_each(|moving| take(moving))?;
        take(&self.memory)
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.moving.as_ref().map_or(0, |moving| moving.len()) + self.memory.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Body) -> Vec<u8> {
        let mut bytes = Vec::new();
        body.read(|piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
        bytes
    }

    #[tokio::test]
    async fn a_body_stays_whole_while_its_file_cannot_be_created() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("pages");
        let mut body = Body::new(pages.as_path().into());
        let all: Vec<u8> = (0..20 * IN_MEMORY).map(|number| number.to_le_bytes()[1]).collect();
        for (number, piece) in all.chunks(IN_MEMORY / 4).enumerate() {
            if number == 30 {
                assert!(body.in_file == 0 && body.held() >= 30 * IN_MEMORY / 4);
                std::fs::create_dir(&pages).unwrap();
            }
            body.push(piece).await;
        }
        assert!(body.in_file > 0 && body.held() <= 2 * IN_MEMORY, "{} bytes are held", body.held());
        assert_eq!(body.len(), u64::try_from(all.len()).unwrap());
        assert!(read(&body) == all);
    }
}
