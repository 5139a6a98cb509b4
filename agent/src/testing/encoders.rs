//! Encodes bodies, as `Content-Encoding` names the encodings.

use std::io::Write as _;

/// The name of an encoding as in `Content-Encoding`, and its encoder.
pub(crate) type Encoder = (&'static str, fn(&[u8]) -> Vec<u8>);

pub(crate) const ENCODERS: [Encoder; 4] = [("gzip", gzip), ("deflate", deflate), ("br", brotli), ("zstd", zstd)];

pub(crate) fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// Encodes as raw deflate, without a zlib header.
pub(crate) fn deflate(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn brotli(text: &[u8]) -> Vec<u8> {
    let mut encoder = ::brotli::CompressorWriter::new(Vec::new(), 4096, 3, 22);
    encoder.write_all(text).unwrap();
    encoder.into_inner()
}

pub(crate) fn zstd(text: &[u8]) -> Vec<u8> {
    ::zstd::stream::encode_all(text, 1).unwrap()
}
