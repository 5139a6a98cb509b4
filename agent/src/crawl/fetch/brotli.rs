//! Decodes brotli, and refuses its large windows. Holds the input of any decoder until it is
//! decoded.

use std::io::{self, BufRead, ErrorKind, Read};

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use hyper::body::{Buf, Bytes};

/// A brotli decoder. Unlike the library's reader, it refuses large windows.
pub(super) struct Brotli {
    pub(super) feed: Feed,
    state: BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    ended: bool,
}

impl Brotli {
    pub(super) fn new(feed: Feed) -> Self {
        let alloc = StandardAlloc::default;
        Self { feed, state: BrotliState::new_strict(alloc(), alloc(), alloc()), ended: false }
    }
}

impl Read for Brotli {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        while !self.ended {
            let starved = self.feed.bytes.is_empty();
            let (mut left, mut taken, mut free, mut given) = (self.feed.bytes.len(), 0, room.len(), 0);
            let result = BrotliDecompressStream(
                &mut left,
                &mut taken,
                &self.feed.bytes,
                &mut free,
                &mut given,
                room,
                &mut 0,
                &mut self.state,
            );
            self.feed.bytes.advance(taken);
            match result {
                BrotliResult::ResultSuccess => self.ended = true,
                BrotliResult::ResultFailure => return Err(ErrorKind::InvalidData.into()),
                BrotliResult::NeedsMoreInput if given == 0 && starved => {
                    return Err(if self.feed.ended { ErrorKind::UnexpectedEof } else { ErrorKind::WouldBlock }.into());
                }
                BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
            }
            if given > 0 {
                return Ok(given);
            }
        }
        Ok(0)
    }
}

/// Input that has not been decoded yet. Reading from an empty feed returns `WouldBlock`, unless the
/// body has ended.
#[derive(Default)]
pub(super) struct Feed {
    pub(super) bytes: Bytes,
    pub(super) ended: bool,
}

impl Feed {
    pub(super) fn append(&mut self, sent: Bytes) {
        if self.bytes.is_empty() {
            self.bytes = sent;
        } else {
            // Joining the bytes copies little, because only the first few bytes of a body can still
            // be unread here.
            self.bytes = [&*self.bytes, &*sent].concat().into();
        }
    }
}

impl BufRead for Feed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.bytes.is_empty() && !self.ended {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(&self.bytes)
    }

    fn consume(&mut self, length: usize) {
        self.bytes.advance(length);
    }
}

impl Read for Feed {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let length = self.fill_buf()?.read(room)?;
        self.consume(length);
        Ok(length)
    }
}
