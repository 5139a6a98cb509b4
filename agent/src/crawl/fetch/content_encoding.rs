//! The supported encodings of a body: parses `Content-Encoding`, and decodes a body as a stream
//! (one layer of gzip, deflate, brotli or zstd, in bounded memory).
//!
//! This module is pure. Only one layer of encoding is decoded. Words in the header that are not
//! encodings (`none`, a charset) are ignored.
//!
//! The decoder never copies its input, and its output comes in pieces of bounded size, however much
//! the input expands. A decoder holds at most the window of its encoding: 32 KiB for gzip and
//! deflate, [`MAX_ZSTD_WINDOW_LOG`] for zstd, and 16 MiB for brotli. Brotli's large windows of up
//! to a gigabyte are not part of HTTP and are refused. A window takes memory only as it fills.
//! [`Decoder::window`] returns the size of a large window; all crawls share one memory budget for
//! large windows.
//!
//! The decoder is lenient where that is safe. A body that is labelled gzip or zstd but is not
//! encoded passes unchanged. Deflate may or may not have the zlib header. Several gzip members may
//! follow one another, with zeros after the last. Any other malformed input is an error.

use std::fmt;
use std::io::{self, ErrorKind, Read};

use flate2::bufread::{DeflateDecoder, GzDecoder, ZlibDecoder};
use hyper::body::{Buf, Bytes};
use zstd::stream::read::Decoder as ZstdDecoder;

use super::brotli::{Brotli, Feed};

/// The encodings that the crawler sends in `Accept-Encoding`.
pub(super) const ACCEPTED: &str = "gzip, br, zstd";
/// Maximum number of decoded bytes per encoded byte of a body. The ratio is about 20 for text, and
/// about 1000 for a decompression bomb.
const MAX_EXPANSION: u64 = 100;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::crawl) enum DecodeError {
    #[error("the body is encoded as '{0}', which was not requested")]
    Unknown(String),
    #[error("the body is encoded more than once: {0}")]
    Layers(String),
    #[error("the body is not valid {0}")]
    Broken(Coding),
    #[error("the {0} body ends too early")]
    Cut(Coding),
    #[error("the {0} body is followed by other data")]
    Followed(Coding),
    /// A decompression bomb: a small input expands to a huge output.
    #[error("the {0} body expands more than {MAX_EXPANSION} times")]
    Expands(Coding),
    /// A large input decodes to almost nothing.
    #[error("the {0} body decodes to almost nothing")]
    Hollow(Coding),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::crawl) enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "brotli",
            Self::Zstd => "zstd",
        })
    }
}

impl Coding {
    /// Parses the values of `Content-Encoding`; `None` if the body is not encoded.
    pub(super) fn read<'a>(values: impl Iterator<Item = &'a [u8]>) -> Result<Option<Self>, DecodeError> {
        let words: Vec<String> = values
            .flat_map(|value| value.split(|byte| *byte == b','))
            .map(|word| String::from_utf8_lossy(word.trim_ascii()).to_ascii_lowercase())
            .filter(|word| !says_nothing(word))
            .collect();
        match words.as_slice() {
            [] => Ok(None),
            [word] => match word.as_str() {
                "gzip" | "x-gzip" => Ok(Some(Self::Gzip)),
                "deflate" => Ok(Some(Self::Deflate)),
                "br" => Ok(Some(Self::Brotli)),
                "zstd" => Ok(Some(Self::Zstd)),
                other => Err(DecodeError::Unknown(short(other))),
            },
            several => Err(DecodeError::Layers(short(&several.join(", ")))),
        }
    }
}

/// Whether a word in `Content-Encoding` is not an encoding. Some servers send `none` or a charset.
fn says_nothing(word: &str) -> bool {
    matches!(word, "" | "identity" | "none") || encoding_rs::Encoding::for_label(word.as_bytes()).is_some()
}

/// Untrusted text, cut to fit into a message.
fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Maximum decoded bytes per piece: small enough for many concurrent crawls, and large enough to
/// make the overhead per piece negligible.
const MAX_PIECE: usize = 32 << 10;
/// The largest zstd window, as a power of two: RFC 9659 permits 8 MiB in HTTP.
const MAX_ZSTD_WINDOW_LOG: u32 = 23;
/// The largest brotli window (RFC 7932, 9.1).
const MAX_BROTLI_WINDOW: usize = 16 << 20;
/// The limits on expansion and on large windows apply once this many bytes have been decoded.
/// Smaller pages are exempt from these limits, because they can be very repetitive.
const FREE_BYTES: u64 = 1 << 20;
/// Maximum encoded bytes per decoded byte. The first [`FREE_BYTES`] encoded bytes do not count. A
/// server that flushes its encoder after each byte sends ten encoded bytes per decoded byte.
const MAX_OVERHEAD: u64 = 16;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

impl Coding {
    /// Detects the format from the beginning of a body. Returns `State::Unknown` if more bytes are
    /// needed.
    fn begin(self, feed: Feed) -> Result<State, DecodeError> {
        let needed = match self {
            Self::Gzip | Self::Deflate => 2,
            Self::Brotli => 1,
            Self::Zstd => ZSTD.len(),
        };
        let beginning: &[u8] = &feed.bytes;
        if beginning.len() < needed && !feed.ended {
            return Ok(State::Unknown(feed));
        }
        if beginning.is_empty() {
            return Ok(State::Plain(feed));
        }
        Ok(match self {
            Self::Gzip if beginning.starts_with(&GZIP) => State::Gzip(Box::new(GzDecoder::new(feed))),
            Self::Zstd if is_zstd(beginning) => {
                let unmade = |_| DecodeError::Broken(self);
                let mut decoder = ZstdDecoder::with_buffer(feed).map_err(unmade)?;
                decoder.window_log_max(MAX_ZSTD_WINDOW_LOG).map_err(unmade)?;
                State::Zstd(Box::new(decoder))
            }
            Self::Gzip | Self::Zstd => State::Plain(feed),
            Self::Deflate if is_zlib(beginning) => State::Zlib(Box::new(ZlibDecoder::new(feed))),
            Self::Deflate => State::Deflate(Box::new(DeflateDecoder::new(feed))),
            Self::Brotli => State::Brotli(Box::new(Brotli::new(feed))),
        })
    }
}

fn is_zstd(beginning: &[u8]) -> bool {
    // A zstd frame or a skippable frame.
    beginning.starts_with(&ZSTD) || matches!(beginning, [first, 0x2a, 0x4d, 0x18, ..] if first & 0xf0 == 0x50)
}

/// Whether the bytes begin with a zlib header (RFC 1950, 2.2): the method is deflate, and the first
/// two bytes, read as one number, are a multiple of 31.
fn is_zlib(beginning: &[u8]) -> bool {
    matches!(beginning, [method, flags, ..] if method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]) % 31 == 0)
}

pub(super) struct Decoder {
    coding: Coding,
    state: State,
    room: Box<[u8]>,
    sent: u64,
    decoded: u64,
}

enum State {
    /// There are not enough bytes yet to detect the format.
    Unknown(Feed),
    /// The body is not encoded, whatever its label says.
    Plain(Feed),
    Gzip(Box<GzDecoder<Feed>>),
    Zlib(Box<ZlibDecoder<Feed>>),
    Deflate(Box<DeflateDecoder<Feed>>),
    Brotli(Box<Brotli>),
    Zstd(Box<ZstdDecoder<'static, Feed>>),
    /// At the end of a gzip member; zeros or another member may follow. `Padded` records whether
    /// zeros have followed.
    Behind(Feed, Padded),
    Failed,
}

impl Decoder {
    pub(super) fn new(coding: Coding) -> Self {
        let state = State::Unknown(Feed::default());
        Self { coding, state, room: vec![0; MAX_PIECE].into(), sent: 0, decoded: 0 }
    }

    /// Adds input. The caller must have decoded all previous input.
    pub(super) fn feed(&mut self, sent: Bytes) {
        self.sent = self.sent.saturating_add(u64::try_from(sent.len()).unwrap_or(u64::MAX));
        if let Some(feed) = self.state.feed() {
            feed.append(sent);
        }
    }

    pub(super) fn end(&mut self) {
        if let Some(feed) = self.state.feed() {
            feed.ended = true;
        }
    }

    /// The maximum size of the decoder's window in bytes; `None` while the window is small.
    pub(super) const fn window(&self) -> Option<usize> {
        match self.state {
            State::Brotli(_) if self.decoded > FREE_BYTES => Some(MAX_BROTLI_WINDOW),
            State::Zstd(_) if self.decoded > FREE_BYTES => Some(1 << MAX_ZSTD_WINDOW_LOG),
            _ => None,
        }
    }

    /// The next decoded piece; `None` if the decoder needs input or is at the end. After an error
    /// nothing more can be decoded.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, DecodeError> {
        match self.try_next() {
            Ok(piece) => Ok(piece),
            Err(error) => {
                self.state = State::Failed;
                Err(error)
            }
        }
    }

    fn try_next(&mut self) -> Result<Option<Bytes>, DecodeError> {
        loop {
            match std::mem::replace(&mut self.state, State::Failed) {
                State::Unknown(feed) => {
                    self.state = self.coding.begin(feed)?;
                    if matches!(self.state, State::Unknown(_)) {
                        return Ok(None);
                    }
                }
                State::Plain(mut feed) => {
                    let piece = std::mem::take(&mut feed.bytes);
                    self.state = State::Plain(feed);
                    return Ok((!piece.is_empty()).then_some(piece));
                }
                State::Behind(feed, padded) => match self.go_on_behind(feed, padded)? {
                    state @ State::Behind(..) => {
                        self.state = state;
                        return Ok(None);
                    }
                    state => self.state = state,
                },
                State::Failed => return Err(DecodeError::Broken(self.coding)),
                mut state => match self.read(&mut state)? {
                    Step::Piece(piece) => {
                        self.state = state;
                        return Ok(Some(piece));
                    }
                    Step::Starved => {
                        self.state = state;
                        return Ok(None);
                    }
                    Step::Ended => self.state = State::Behind(state.into_feed(), Padded(false)),
                },
            }
        }
    }

    fn read(&mut self, state: &mut State) -> Result<Step, DecodeError> {
        let step = match state.read(&mut self.room) {
            Ok(0) => Step::Ended,
            Ok(length) => {
                self.decoded = self.decoded.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
                Step::Piece(Bytes::copy_from_slice(&self.room[..length]))
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => Step::Starved,
                ErrorKind::UnexpectedEof => return Err(DecodeError::Cut(self.coding)),
                _ => return Err(DecodeError::Broken(self.coding)),
            },
        };
        let left = state.feed().map_or(0, |feed| feed.bytes.len());
        self.vet_sizes(left)?;
        Ok(step)
    }

    /// Checks the ratio of output to input. The last `left` bytes of the input are not decoded yet.
    fn vet_sizes(&self, left: usize) -> Result<(), DecodeError> {
        let taken = self.sent.saturating_sub(u64::try_from(left).unwrap_or(u64::MAX));
        if self.decoded > FREE_BYTES && self.decoded > taken.saturating_mul(MAX_EXPANSION) {
            return Err(DecodeError::Expands(self.coding));
        }
        if taken > self.decoded.saturating_mul(MAX_OVERHEAD).saturating_add(FREE_BYTES) {
            return Err(DecodeError::Hollow(self.coding));
        }
        Ok(())
    }

    /// Decides what follows the end of a stream: nothing, zeros, or another gzip member.
    fn go_on_behind(&self, mut feed: Feed, Padded(padded): Padded) -> Result<State, DecodeError> {
        let zeros = feed.bytes.iter().take_while(|byte| **byte == 0).count();
        feed.bytes.advance(zeros);
        let padded = padded || zeros > 0;
        self.vet_sizes(feed.bytes.len())?;
        let may_be_member = self.coding == Coding::Gzip && !padded;
        match &*feed.bytes {
            [] => Ok(State::Behind(feed, Padded(padded))),
            [0x1f] if may_be_member && !feed.ended => Ok(State::Behind(feed, Padded(padded))),
            [0x1f, 0x8b, ..] if may_be_member => Ok(State::Gzip(Box::new(GzDecoder::new(feed)))),
            _ => Err(DecodeError::Followed(self.coding)),
        }
    }
}

struct Padded(bool);

enum Step {
    Piece(Bytes),
    Starved,
    Ended,
}

impl State {
    fn feed(&mut self) -> Option<&mut Feed> {
        match self {
            Self::Unknown(feed) | Self::Plain(feed) | Self::Behind(feed, _) => Some(feed),
            Self::Gzip(decoder) => Some(decoder.get_mut()),
            Self::Zlib(decoder) => Some(decoder.get_mut()),
            Self::Deflate(decoder) => Some(decoder.get_mut()),
            Self::Brotli(decoder) => Some(&mut decoder.feed),
            Self::Zstd(decoder) => Some(decoder.get_mut()),
            Self::Failed => None,
        }
    }

    fn into_feed(mut self) -> Feed {
        self.feed().map(std::mem::take).unwrap_or_default()
    }

    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(room),
            Self::Zlib(decoder) => decoder.read(room),
            Self::Deflate(decoder) => decoder.read(room),
            Self::Brotli(decoder) => decoder.read(room),
            Self::Zstd(decoder) => decoder.read(room),
            Self::Unknown(_) | Self::Plain(_) | Self::Behind(..) | Self::Failed => Ok(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{brotli, deflate, gzip, zstd};

    #[test]
    fn the_header_gives_at_most_one_coding() {
        let read = |values: &[&str]| Coding::read(values.iter().map(|value| value.as_bytes()));
        for (values, expected) in [
            (&[][..], None),
            (&[""], None),
            (&["identity"], None),
            (&["UTF-8"], None),
            (&["none"], None),
            (&["GZip"], Some(Coding::Gzip)),
            (&["x-gzip"], Some(Coding::Gzip)),
            (&[" br "], Some(Coding::Brotli)),
            (&["deflate, identity"], Some(Coding::Deflate)),
            (&["", "zstd"], Some(Coding::Zstd)),
        ] {
            assert_eq!(read(values), Ok(expected), "{values:?}");
        }
        for values in [&["gzip, br"][..], &["gzip", "gzip"], &["gzip,gzip,gzip"]] {
            assert!(matches!(read(values), Err(DecodeError::Layers(_))), "{values:?}");
        }
        assert_eq!(read(&["compress"]), Err(DecodeError::Unknown("compress".to_owned())));
        assert!(read(&[&"x".repeat(10_000)]).unwrap_err().to_string().len() < 150);
    }

    proptest! {
        #[test]
        fn any_header_is_read(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..4)) {
            if let Err(error) = Coding::read(values.iter().map(Vec::as_slice)) {
                prop_assert!(error.to_string().len() < 400);
            }
        }
    }

    const ALL: [Coding; 4] = [Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstd];

    /// Decodes a body that arrives in pieces of `piece` bytes, and stops after `most` decoded
    /// bytes.
    fn decode_most(coding: Coding, body: &[u8], piece: usize, most: usize) -> Result<Vec<u8>, DecodeError> {
        let mut decoder = Decoder::new(coding);
        let mut text = Vec::new();
        let mut pieces = body.chunks(piece.max(1)).map(Bytes::copy_from_slice);
        loop {
            let next = pieces.next();
            let last = next.is_none();
            match next {
                Some(piece) => decoder.feed(piece),
                None => decoder.end(),
            }
            while let Some(piece) = decoder.next()? {
                assert!(!piece.is_empty() && piece.len() <= MAX_PIECE.max(body.len()));
                text.extend_from_slice(&piece);
                assert!(text.len() <= most, "{} bytes came out", text.len());
            }
            if last {
                return Ok(text);
            }
        }
    }

    fn decode(coding: Coding, body: &[u8], piece: usize) -> Result<Vec<u8>, DecodeError> {
        decode_most(coding, body, piece, usize::MAX)
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn encode(coding: Coding, text: &[u8]) -> Vec<u8> {
        match coding {
            Coding::Gzip => gzip(text),
            Coding::Deflate => zlib(text),
            Coding::Brotli => brotli(text),
            Coding::Zstd => zstd(text),
        }
    }

    fn text() -> Vec<u8> {
        (0..5000_u32)
            .flat_map(|number| format!("<a href=/{number}>{}</a>", number * number % 997).into_bytes())
            .collect()
    }

    #[test]
    fn a_body_is_decoded_in_pieces_of_any_size() {
        for coding in ALL {
            let body = encode(coding, &text());
            for piece in [1, 7, 1000, 1_000_000] {
                assert_eq!(decode(coding, &body, piece), Ok(text()), "{coding} in pieces of {piece}");
            }
        }
        assert_eq!(decode(Coding::Deflate, &deflate(&text()), 100), Ok(text()));
    }

    #[test]
    fn common_mistakes_of_servers_are_accepted() {
        for piece in [1, 2, 1000] {
            for coding in ALL {
                assert_eq!(decode(coding, b"", piece), Ok(Vec::new()), "{coding}");
                assert_eq!(decode(coding, &encode(coding, b""), piece), Ok(Vec::new()), "{coding}");
            }
            for plain in [&b"<html>"[..], b"x", b"\x1f<", b"(\xb5/"] {
                assert_eq!(decode(Coding::Gzip, plain, piece).as_deref(), Ok(plain));
                assert_eq!(decode(Coding::Zstd, plain, piece).as_deref(), Ok(plain));
            }
            let members = [gzip(b"one, "), gzip(b"two"), vec![0; 500]].concat();
            assert_eq!(decode(Coding::Gzip, &members, piece).as_deref(), Ok(&b"one, two"[..]));
            let frames = [zstd(b"one, "), vec![0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9], zstd(b"two")].concat();
            assert_eq!(decode(Coding::Zstd, &frames, piece).as_deref(), Ok(&b"one, two"[..]));
        }
    }

    #[test]
    fn a_body_that_is_cut_or_too_long_or_invalid_is_an_error() {
        for coding in ALL {
            let body = encode(coding, &text());
            for piece in [1, 50, 1_000_000] {
                for left in [4, 5, 12, body.len() / 2, body.len() - 1] {
                    assert_eq!(decode(coding, &body[..left], piece), Err(DecodeError::Cut(coding)), "{coding} {left}");
                }
                let longer = [&body, &b"\0\0</html>"[..]].concat();
                let error =
                    if coding == Coding::Zstd { DecodeError::Broken(coding) } else { DecodeError::Followed(coding) };
                assert_eq!(decode(coding, &longer, piece), Err(error), "{coding} {piece}");
            }
            let mut wrong = body.clone();
            wrong[20..60].fill(0xaa);
            assert!(decode(coding, &wrong, 1000).is_err(), "{coding}");
        }
        let broken = Err(DecodeError::Broken(Coding::Brotli));
        assert_eq!(decode(Coding::Brotli, b"<!doctype html><title>x</title>", 7), broken);
        let mut wrong = gzip(&text());
        let at = wrong.len() - 6;
        wrong[at] ^= 1;
        assert_eq!(decode(Coding::Gzip, &wrong, 1000), Err(DecodeError::Broken(Coding::Gzip)), "the checksum");
    }

    #[test]
    fn a_decompression_bomb_is_abandoned_at_a_hundredfold_expansion() {
        let zeros = vec![0; 100 << 20];
        let most = usize::try_from(FREE_BYTES).unwrap() + MAX_PIECE;
        for coding in ALL {
            let bomb = encode(coding, &zeros);
            assert!(bomb.len() < 500_000, "{coding} {}", bomb.len());
            for piece in [100, 100_000] {
                // A decoder may take a whole piece at once, and every byte that it takes permits
                // 100 decoded bytes.
                let most = most + 100 * piece;
                assert_eq!(decode_most(coding, &bomb, piece, most), Err(DecodeError::Expands(coding)), "{coding}");
            }
        }
        let regular = "<tr><td>0</td></tr>\n".repeat(50_000);
        for coding in ALL {
            assert_eq!(decode(coding, &encode(coding, regular.as_bytes()), 1000).unwrap().len(), regular.len());
        }
    }

    #[test]
    fn a_window_counts_only_if_it_is_large_and_much_is_decoded() {
        let text = text().repeat(1 + (4 << 20) / text().len());
        for (coding, most) in [
            (Coding::Gzip, None),
            (Coding::Deflate, None),
            (Coding::Brotli, Some(MAX_BROTLI_WINDOW)),
            (Coding::Zstd, Some(1 << MAX_ZSTD_WINDOW_LOG)),
        ] {
            let mut decoder = Decoder::new(coding);
            decoder.feed(encode(coding, &text).into());
            let mut decoded = 0;
            while decoded <= usize::try_from(FREE_BYTES).unwrap() {
                assert_eq!(decoder.window(), None, "{coding}");
                decoded += decoder.next().unwrap().unwrap().len();
            }
            assert_eq!(decoder.window(), most, "{coding}");
        }
    }

    #[test]
    fn a_large_body_that_decodes_to_nothing_is_abandoned() {
        let empty_blocks = [0, 0, 0, 0xff, 0xff].repeat(300_000);
        assert_eq!(decode(Coding::Deflate, &empty_blocks, 10_000), Err(DecodeError::Hollow(Coding::Deflate)));
        let padded = [gzip(b"text"), vec![0; 2 << 20]].concat();
        assert_eq!(decode(Coding::Gzip, &padded, 10_000), Err(DecodeError::Hollow(Coding::Gzip)));
        let endless_name = [&[0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 0], &[b'x'; 2 << 20][..]].concat();
        assert_eq!(decode(Coding::Gzip, &endless_name, 10_000), Err(DecodeError::Broken(Coding::Gzip)));
    }

    #[test]
    fn windows_larger_than_http_allows_are_refused() {
        let window = |log: u32| {
            let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
            encoder.window_log(log).unwrap();
            encoder.write_all(&text()).unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(decode(Coding::Zstd, &window(MAX_ZSTD_WINDOW_LOG), 1000), Ok(text()));
        assert_eq!(
            decode(Coding::Zstd, &window(MAX_ZSTD_WINDOW_LOG + 1), 1000),
            Err(DecodeError::Broken(Coding::Zstd))
        );
        let params = brotli::enc::BrotliEncoderParams { large_window: true, lgwin: 28, ..Default::default() };
        let mut large = Vec::new();
        brotli::BrotliCompress(&mut &*text(), &mut large, &params).unwrap();
        assert_eq!(decode(Coding::Brotli, &large, 1000), Err(DecodeError::Broken(Coding::Brotli)));
    }

    fn coding() -> impl Strategy<Value = Coding> {
        prop::sample::select(&ALL[..])
    }

    proptest! {
        #[test]
        fn any_bytes_decode_the_same_in_pieces_of_any_size(
            coding in coding(),
            magic in any::<bool>(),
            rest in prop::collection::vec(any::<u8>(), 0..300),
            piece in 1_usize..40,
        ) {
            let body = if magic { [&encode(coding, b"")[..4.min(encode(coding, b"").len())], &rest].concat() } else { rest };
            prop_assert_eq!(decode(coding, &body, piece), decode(coding, &body, body.len()));
        }

        #[test]
        fn a_damaged_body_decodes_the_same_in_pieces_of_any_size(
            coding in coding(),
            text in prop::collection::vec(0_u8..4, 0..2000),
            at in any::<prop::sample::Index>(),
            bit in 0_u32..8,
            cut in any::<prop::sample::Index>(),
            piece in 1_usize..40,
        ) {
            let whole = encode(coding, &text);
            prop_assert_eq!(&decode(coding, &whole, piece).unwrap(), &text);
            let mut body = whole.clone();
            body[at.index(whole.len())] ^= 1 << bit;
            body.truncate(cut.index(whole.len()) + 1);
            prop_assert_eq!(decode(coding, &body, piece), decode(coding, &body, body.len()));
        }
    }
}
