//! The supported encodings of a body, the parser of `Content-Encoding`, and decoding errors.
//!
//! This module is pure. Only one layer of encoding is decoded. Words in the header that are not
//! encodings (`none`, a charset) are ignored.

use std::fmt;

/// The encodings that the crawler sends in `Accept-Encoding`.
pub(super) const ACCEPTED: &str = "gzip, br, zstd";
/// Maximum number of decoded bytes per encoded byte of a body. The ratio is about 20 for text, and
/// about 1000 for a decompression bomb.
pub(super) const MAX_EXPANSION: u64 = 100;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
}
