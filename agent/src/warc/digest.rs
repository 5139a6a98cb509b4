//! Digests of what is stored. SHA-256, because whoever runs a site could make two pages with one SHA-1.

use sha2::{Digest as _, Sha256};

const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// A digest that is being taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Digest(Sha256);

impl Digest {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// As WARC's fields name it: the algorithm, and base 32 (RFC 4648).
    pub(super) fn label(self) -> String {
        format!("sha256:{}", base32(&self.0.finalize()))
    }
}

/// Of some bytes.
pub(super) fn of(bytes: &[u8]) -> String {
    let mut digest = Digest::default();
    digest.update(bytes);
    digest.label()
}

fn base32(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(5) * 8);
    for chunk in bytes.chunks(5) {
        let mut five = [0; 5];
        five[..chunk.len()].copy_from_slice(chunk);
        let bits = five.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        let digits = (chunk.len() * 8).div_ceil(5);
        for digit in 0..8 {
            let value = usize::try_from(bits >> (35 - 5 * digit) & 31).expect("five bits");
            text.push(if digit < digits { char::from(ALPHABET[value]) } else { '=' });
        }
    }
    text
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
            assert_eq!(base32(bytes.as_bytes()), text);
        }
        assert_eq!(of(b""), "sha256:4OYMIQUY7QOBJGX36TEJS35ZEQT24QPEMSNZGTFESWMRW6CSXBKQ====");
    }
}
