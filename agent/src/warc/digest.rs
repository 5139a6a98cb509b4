//! Computes digests of stored content with SHA-256. SHA-1 is not used, because a site's operator
//! could make two pages with the same SHA-1 digest.

use data_encoding::BASE32;
use sha2::{Digest as _, Sha256};

#[derive(Debug, Clone, Default)]
pub(super) struct Digest(Sha256);

impl Digest {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest in the form used in WARC fields: the algorithm, and the value in base 32 (RFC
    /// 4648).
    pub(super) fn label(self) -> String {
        format!("sha256:{}", BASE32.encode(&self.0.finalize()))
    }
}

pub(super) fn of(bytes: &[u8]) -> String {
    let mut digest = Digest::default();
    digest.update(bytes);
    digest.label()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_the_algorithm_and_base_32() {
        assert_eq!(of(b""), "sha256:4OYMIQUY7QOBJGX36TEJS35ZEQT24QPEMSNZGTFESWMRW6CSXBKQ====");
    }
}
