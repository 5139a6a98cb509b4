//! Secrets: the operator's token, enrolment tokens, and the credentials of agents.
//!
//! A secret is 256 random bits from the operating system, in hexadecimal. A secret is shown once,
//! and only its SHA-256 is stored. A secret cannot be guessed, so a plain hash without salt is
//! enough.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// Length in bytes of a secret and of its hash.
const BYTES: usize = 32;

/// A secret in clear text. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// The SHA-256 of a secret. The database stores only this hash.
#[derive(Debug, Clone, Copy)]
pub struct SecretHash([u8; BYTES]);

impl Secret {
    /// Makes a new random secret.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(hex(&bytes)))
    }

    /// The secret as text, to be shown once to its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn hash(&self) -> SecretHash {
        SecretHash::of(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl SecretHash {
    /// The hash of a text that a caller presents as a secret.
    pub fn of(presented: &str) -> Self {
        Self(Sha256::digest(presented.as_bytes()).into())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A hash read from the database; `None` if it has the wrong length.
    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl PartialEq for SecretHash {
    /// Takes constant time, so that the time does not reveal how much of a wrong secret is right.
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0).fold(0_u8, |difference, (a, b)| std::hint::black_box(difference | (a ^ b))) == 0
    }
}

impl Eq for SecretHash {}

/// Converts bytes to lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|nibble| char::from(DIGITS[usize::from(nibble)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_known_by_its_hash_alone() {
        let secret = Secret::generate().expect("randomness");
        assert_eq!(secret.reveal().len(), 64);
        assert_eq!(SecretHash::of(secret.reveal()), secret.hash());
        assert_ne!(Secret::generate().expect("randomness").hash(), secret.hash());
        assert_eq!(SecretHash::from_stored(secret.hash().as_bytes()), Some(secret.hash()));
        assert!(!format!("{secret:?}").contains(secret.reveal()));
    }

    #[test]
    fn hashes_are_sha_256() {
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(SecretHash::of("abc").as_bytes()), known);
        assert!(SecretHash::from_stored(&[0; 31]).is_none());
    }
}
