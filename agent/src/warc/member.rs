//! Makes gzip members (RFC 1952). Each record of a WARC file is a member of its own, so that a
//! reader can start at the record's offset.
//!
//! The compressor's state is larger than most records, so one compressor is allocated and reused.

use std::io;

use flate2::{Compress, Compression, Crc, FlushCompress, Status};

/// Compression level, 1 to 9. Level 1 takes two fifths of level 2's time, and its output is a
/// quarter larger than level 2's (docs/evaluation/costs.md).
const LEVEL: u32 = 1;
/// A gzip header: magic number, method deflate, no name, no time, the flag for fastest compression,
/// unknown operating system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
/// Size of the compressor's output buffer in bytes. The output of most records fills only a tenth
/// of the buffer.
const ROOM: usize = 32 << 10;
/// Maximum number of bytes to join before they are compressed. Most records are then compressed in
/// one call.
const TOGETHER: usize = 32 << 10;

#[derive(Debug)]
pub(super) struct Gzip {
    compress: Compress,
    crc: Crc,
    /// Bytes that have been added but not compressed yet.
    waiting: Vec<u8>,
    /// The compressor's output buffer. If the compressor wrote directly to `out`, the free space of
    /// `out` would have to be zeroed for every piece.
    space_limit: Box<[u8]>,
    /// Finished bytes that have not been written to the file yet.
    out: Vec<u8>,
}

impl Gzip {
    pub(super) fn new() -> Self {
        let compress = Compress::new(Compression::new(LEVEL), false);
        let (waiting, space_limit) = (Vec::with_capacity(TOGETHER), vec![0; ROOM].into());
        Self { compress, crc: Crc::new(), waiting, space_limit, out: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        self.out.clear();
    }

    pub(super) fn begin(&mut self) {
        self.compress.reset();
        self.crc.reset();
        self.waiting.clear();
        self.out.extend(HEADER);
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.waiting.len() + bytes.len() > TOGETHER {
            self.compress_waiting(FlushCompress::None)?;
        }
        if bytes.len() > TOGETHER {
            self.crc.update(bytes);
            return self.compress_all(bytes, FlushCompress::None);
        }
        self.waiting.extend_from_slice(bytes);
        Ok(())
    }

    pub(super) fn end(&mut self) -> io::Result<()> {
        self.compress_waiting(FlushCompress::Finish)?;
        self.out.extend(self.crc.sum().to_le_bytes());
        self.out.extend(self.crc.amount().to_le_bytes());
        Ok(())
    }

    /// Makes a member from these parts, and compresses it only if it has 64 KiB or more. For small
    /// parts, compression is not worth the time to reset the compressor.
    pub(super) fn plain(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let Ok(length) = u16::try_from(length) else {
            self.begin();
            parts.iter().try_for_each(|part| self.write(part))?;
            return self.end();
        };
        self.out.extend(HEADER);
        // A single stored block, marked as the last: its length, and the complement of the length
        // (RFC 1951, 3.2.4).
        self.out.push(1);
        self.out.extend(length.to_le_bytes());
        self.out.extend((!length).to_le_bytes());
        self.crc.reset();
        for part in parts {
            self.crc.update(part);
            self.out.extend_from_slice(part);
        }
        self.out.extend(self.crc.sum().to_le_bytes());
        self.out.extend(self.crc.amount().to_le_bytes());
        Ok(())
    }

    /// The bytes of all members since the last [`Gzip::clear`].
    pub(super) fn made(&self) -> &[u8] {
        &self.out
    }

    fn compress_waiting(&mut self, flush: FlushCompress) -> io::Result<()> {
        let mut waiting = std::mem::take(&mut self.waiting);
        self.crc.update(&waiting);
        let compressed = self.compress_all(&waiting, flush);
        waiting.clear();
        self.waiting = waiting;
        compressed
    }

    /// Compresses all of `bytes`. If `flush` is `Finish`, also empties the compressor and ends its
    /// stream.
    fn compress_all(&mut self, mut bytes: &[u8], flush: FlushCompress) -> io::Result<()> {
        let is_last = matches!(flush, FlushCompress::Finish);
        let mut status = Status::Ok;
        while !bytes.is_empty() || is_last && status != Status::StreamEnd {
            let before = self.compress.total_in();
            status = self.compress(bytes, flush)?;
            let taken = usize::try_from(self.compress.total_in() - before).map_err(io::Error::other)?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    fn compress(&mut self, bytes: &[u8], flush: FlushCompress) -> io::Result<Status> {
        let before = self.compress.total_out();
        let status = self.compress.compress(bytes, &mut self.space_limit, flush).map_err(io::Error::other)?;
        let made = usize::try_from(self.compress.total_out() - before).map_err(io::Error::other)?;
        self.out.extend_from_slice(&self.space_limit[..made]);
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::MultiGzDecoder;
    use proptest::prelude::*;

    use super::*;

    fn read(members: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        MultiGzDecoder::new(members).read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn noise(length: usize) -> Vec<u8> {
        (0_u32..).flat_map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()).take(length).collect()
    }

    #[test]
    fn a_plain_member_reads_back_however_long_it_is() {
        for length in [0, 1, 65_535, 65_536, 100_000] {
            let (bytes, mut gzip) = (noise(length), Gzip::new());
            gzip.plain(&[&bytes[..length / 2], &bytes[length / 2..]]).unwrap();
            assert!(read(gzip.made()) == bytes, "{length} bytes");
        }
    }

    #[test]
    fn an_unfinished_member_leaves_nothing_in_the_next() {
        let mut gzip = Gzip::new();
        gzip.begin();
        gzip.write(b"never ended").unwrap();
        gzip.clear();
        gzip.begin();
        gzip.write(b"whole").unwrap();
        gzip.end().unwrap();
        assert_eq!(read(gzip.made()), b"whole");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn pieces_of_any_length_read_back_in_order(lengths in prop::collection::vec(0..3 * TOGETHER, 0..8)) {
            let (mut gzip, mut all) = (Gzip::new(), Vec::new());
            gzip.begin();
            for (length, shift) in lengths.into_iter().zip(0..) {
                let piece: Vec<u8> = noise(length).into_iter().map(|byte| byte >> shift).collect();
                gzip.write(&piece).unwrap();
                all.extend(piece);
            }
            gzip.end().unwrap();
            gzip.plain(&[b"and ", b"another"]).unwrap();
            prop_assert!(read(gzip.made()) == [all.as_slice(), b"and another"].concat());
        }
    }
}
