//! Members of gzip (RFC 1952): each record of a WARC file is one, so that it can be read from its offset.
//!
//! The state of the compressor is made once and used again: it is larger than most records.

use std::io;

use flate2::{Compress, Compression, Crc, FlushCompress, Status};

/// How hard it is tried, 1 to 9. The first takes two fifths of the time of the second, and its members are a quarter larger
/// (docs/crawling.md).
const LEVEL: u32 = 1;
/// The magic number, deflate, no name, no time, the fastest compressor, an unknown system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
/// Room for what the compressor makes at once, in bytes. Most records need a tenth of it.
const ROOM: usize = 32 << 10;

/// Makes members, one after another.
#[derive(Debug)]
pub(super) struct Gzip {
    compress: Compress,
    crc: Crc,
    /// Where the compressor writes. Were that the end of `out`, all that is free there would be zeroed for every piece.
    room: Box<[u8]>,
    /// What is made and not taken yet.
    out: Vec<u8>,
}

impl Gzip {
    pub(super) fn new() -> Self {
        let compress = Compress::new(Compression::new(LEVEL), false);
        Self { compress, crc: Crc::new(), room: vec![0; ROOM].into(), out: Vec::new() }
    }

    /// Forgets whatever is half made.
    pub(super) fn clear(&mut self) {
        self.out.clear();
    }

    /// Begins a member.
    pub(super) fn begin(&mut self) {
        self.compress.reset();
        self.crc.reset();
        self.out.extend(HEADER);
    }

    /// Adds bytes to it.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.crc.update(bytes);
        while !bytes.is_empty() {
            let before = self.compress.total_in();
            self.compress(bytes, FlushCompress::None)?;
            let taken = usize::try_from(self.compress.total_in() - before).map_err(io::Error::other)?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Ends it.
    pub(super) fn end(&mut self) -> io::Result<()> {
        while self.compress(&[], FlushCompress::Finish)? != Status::StreamEnd {}
        self.out.extend(self.crc.sum().to_le_bytes());
        self.out.extend(self.crc.amount().to_le_bytes());
        Ok(())
    }

    /// What is made of this member and those before it, until it is [cleared](Gzip::clear).
    pub(super) fn made(&self) -> &[u8] {
        &self.out
    }

    fn compress(&mut self, bytes: &[u8], flush: FlushCompress) -> io::Result<Status> {
        let before = self.compress.total_out();
        let status = self.compress.compress(bytes, &mut self.room, flush).map_err(io::Error::other)?;
        let made = usize::try_from(self.compress.total_out() - before).map_err(io::Error::other)?;
        self.out.extend_from_slice(&self.room[..made]);
        Ok(status)
    }
}
