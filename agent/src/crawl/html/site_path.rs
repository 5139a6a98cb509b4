//! The normal form of a URL inside one site: its path and query.
//!
//! This module is pure. Equivalent URLs have the same [`SitePath`]. A `SitePath` has no fragment,
//! default port, credentials, dot segments, empty query, unnecessary escapes or session
//! identifiers. [`super::site`] makes paths from URLs.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use sha2::{Digest, Sha256};

use super::normal_form::is_plain;

/// Maximum length of a path and query in bytes. Longer paths belong to traps, not to pages.
pub(in crate::crawl) const MAX_PATH_BYTES: usize = 2048;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::crawl) struct SitePath {
    text: Box<str>,
    /// The fingerprint is computed once per path, because every lookup needs it.
    fingerprint: Fingerprint,
}

/// Represents a [`SitePath`] in sets, so that the known paths of a large site take little memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::crawl) struct Fingerprint(u128);

pub(in crate::crawl) type Fingerprints = HashSet<Fingerprint, BuildHasherDefault<FingerprintHasher>>;

/// Uses half of a fingerprint's bits as its hash, because a cryptographic digest has already mixed
/// them.
#[derive(Debug, Default)]
pub(in crate::crawl) struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn write_u128(&mut self, bits: u128) {
        self.0 = u64::try_from(bits >> 64).expect("64 bits");
    }

    fn write(&mut self, bytes: &[u8]) {
        // All keys are `u128`, so this method is never called. The method would be correct for
        // other keys too.
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl SitePath {
    pub(in crate::crawl) fn root() -> Self {
        Self::new("/")
    }

    /// The path with this text, which must be in normal form.
    pub(super) fn new(text: &str) -> Self {
        Self { text: text.into(), fingerprint: Self::fingerprint_of(text) }
    }

    pub(in crate::crawl) fn as_str(&self) -> &str {
        &self.text
    }

    /// A shortcut for links that a quick check finds in normal form. Most links have this form, and
    /// the URL parser takes ten times as long. If `plain` returns `None`, use the URL parser.
    pub(in crate::crawl) fn plain(href: &str) -> Option<Self> {
        is_short_and_plain(href).then(|| Self::new(href))
    }

    /// Reads a path that was written with [`SitePath::as_str`]; `None` for any other text. Does not
    /// check the normal form.
    pub(in crate::crawl) fn stored(text: &str) -> Option<Self> {
        (text.starts_with('/') && text.len() <= MAX_PATH_BYTES).then(|| Self::new(text))
    }

    /// Whether a quick check shows that the path is in normal form.
    pub(super) fn is_plain(&self) -> bool {
        is_short_and_plain(&self.text)
    }

    pub(in crate::crawl) const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub(in crate::crawl) fn fingerprint_of(text: &str) -> Fingerprint {
        let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        let (half, _) = digest.split_first_chunk().expect("32 bytes begin with 16");
        Fingerprint(u128::from_be_bytes(*half))
    }
}

impl Fingerprint {
    pub(in crate::crawl) const fn as_u128(self) -> u128 {
        self.0
    }

    pub(in crate::crawl) const fn from_u128(bits: u128) -> Self {
        Self(bits)
    }
}

fn is_short_and_plain(path: &str) -> bool {
    path.len() <= MAX_PATH_BYTES && is_plain(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_path_is_read_without_the_parser() {
        for href in ["/", "/a", "/a/b-c_d.html", "/a.b/..c", "/robots.txt"] {
            assert_eq!(SitePath::plain(href).is_some(), !href.contains("/.."), "{href}");
        }
        let long = format!("/{}", "x".repeat(MAX_PATH_BYTES));
        for href in
            ["", "a", "//a", "/a//b", "/.", "/a/./b", "/../a", "/a?b", "/a#b", "/%41", "/a;b", "/a ", "/\u{e9}", &long]
        {
            assert_eq!(SitePath::plain(href), None, "{href}");
        }
    }
}
