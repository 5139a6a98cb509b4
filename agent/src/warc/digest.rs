//! Digests of what is stored. SHA-256, because whoever runs a site could make two pages with one SHA-1.

use sha2::{Digest as _, Sha256};

const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// The length of a label.
const LABEL: usize = 63;

/// A digest that is being taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Digest(Sha256);

impl Digest {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// As WARC's fields name it: the algorithm, and base 32 (RFC 4648).
    pub(super) fn label(self) -> String {
        let mut label = String::with_capacity(LABEL);
        label.push_str("sha256:");
        base32(&self.0.finalize(), &mut label);
        label
    }
}

/// Of some bytes.
pub(super) fn of(bytes: &[u8]) -> String {
    let mut digest = Digest::default();
    digest.update(bytes);
    digest.label()
}

/// Writes bytes in base 32 behind what is there.
fn base32(bytes: &[u8], text: &mut String) {
    for chunk in bytes.chunks(5) {
        let mut five = [0; 8];
        five[3..3 + chunk.len()].copy_from_slice(chunk);
        let bits = u64::from_be_bytes(five);
        let digits = (chunk.len() * 8).div_ceil(5);
        for digit in 0..8 {
            let [.., value] = (bits >> (35 - 5 * digit) & 31).to_be_bytes();
            text.push(if digit < digits { char::from(ALPHABET[usize::from(value)]) } else { '=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_32_is_that_of_the_rfc() {
        let cases = [
            ("", ""),
            ("f", "MY======"),
            ("fo", "MZXQ===="),
            ("foo", "MZXW6==="),
            ("foob", "MZXW6YQ="),
            ("fooba", "MZXW6YTB"),
            ("foobar", "MZXW6YTBOI======"),
        ];
        for (bytes, text) in cases {
            let mut written = String::new();
            base32(bytes.as_bytes(), &mut written);
            assert_eq!(written, text);
        }
        assert_eq!(of(b""), "sha256:4OYMIQUY7QOBJGX36TEJS35ZEQT24QPEMSNZGTFESWMRW6CSXBKQ====");
    }
}
