//! The secrets of a data directory: the operator's token, and the certificate authority that agents
//! trust.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use anyhow::{Context, bail};

use crate::app::data_dir::write_atomically;
use crate::app::tls;
use crate::machine::secret::{SecretHash, hex};

const TOKEN: &str = "operator-token";
const CA: &str = "tls/ca.pem";
/// The files and their modes, in the order of writing. The authority's key is written before its
/// certificate, because an authority with a certificate is considered complete.
const FILES: [(&str, u32); 3] = [(TOKEN, 0o600), ("tls/ca.key", 0o600), (CA, 0o644)];

/// The contents of the secret files by file name.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    files: Vec<(&'static str, u32, Vec<u8>)>,
}

impl Secrets {
    /// Collects the secrets. The function `read` returns the content of a file by name.
    pub(super) fn collect(mut read: impl FnMut(&str) -> anyhow::Result<Option<Vec<u8>>>) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        for (name, mode) in FILES {
            if let Some(content) = read(name)? {
                files.push((name, mode, content));
            }
        }
        Ok(Self { files })
    }

    /// The secrets of a data directory. Some or all may be missing.
    pub(super) fn of(data_dir: &Path) -> anyhow::Result<Self> {
        Self::collect(|name| {
            let path = data_dir.join(name);
            match fs::read(&path) {
                Ok(content) => Ok(Some(content)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
            }
        })
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.files.iter().map(|(name, _, content)| (*name, content.as_slice()))
    }

    fn text(&self, name: &str) -> Option<String> {
        self.files().find(|(known, _)| *known == name).map(|(_, content)| String::from_utf8_lossy(content).into_owned())
    }

    /// SHA-256 of the operator's token, hexadecimal.
    pub(super) fn operator_token(&self) -> Option<String> {
        let token = self.text(TOKEN)?;
        Some(token.trim()).filter(|token| !token.is_empty()).map(|token| hex(SecretHash::of(token).as_bytes()))
    }

    /// SHA-256 of the authority's certificate, hexadecimal.
    pub(super) fn authority(&self) -> Option<String> {
        self.text(CA).and_then(|pem| tls::fingerprint(&pem))
    }

    pub(super) fn write(&self, data_dir: &Path) -> anyhow::Result<()> {
        for (name, mode, content) in &self.files {
            let path = data_dir.join(name);
            if let Some(folder) = path.parent() {
                let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
                made.with_context(|| format!("make {}", folder.display()))?;
            }
            write_atomically(&path, *mode, content)?;
        }
        Ok(())
    }

    /// Fails if a data directory has secrets that differ from those of the backup.
    pub(super) fn ensure_theirs(&self, token: Option<&str>, ca: Option<&str>, data_dir: &Path) -> anyhow::Result<()> {
        let differs = |own: Option<String>, theirs: Option<&str>| {
            own.is_some_and(|own| theirs.is_some_and(|theirs| own != theirs))
        };
        for (what, differs) in [(TOKEN, differs(self.operator_token(), token)), ("tls", differs(self.authority(), ca))]
        {
            if differs {
                bail!(
                    "{} differs from the backup's: it belongs to another fleet, or was replaced since; choose another \
                     directory with --data-dir, or move {what} away to use the backup's",
                    data_dir.join(what).display()
                );
            }
        }
        Ok(())
    }
}
