//! The first entry of a backup: its format, its time, and which secrets belong to the backup.

use anyhow::{Context, bail};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// The name of the manifest in a backup.
pub(super) const MANIFEST: &str = "manifest.json";
/// The number of the backup format that this program writes.
pub(super) const FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    /// The version of Landfall that made the backup.
    pub(super) landfall: String,
    /// The time of the snapshot, by the database's clock.
    pub(super) made_at: DateTime<Utc>,
    /// The newest migration in the database.
    pub(super) schema: i64,
    /// The major versions of the Postgres server, and of the `pg_dump` that wrote the dump.
    pub(super) postgres: u32,
    pub(super) pg_dump: u32,
    /// SHA-256 of the operator's token and of the authority's certificate, hexadecimal. These
    /// hashes identify the backup's secrets, even if the backup does not contain the secrets.
    /// `None` if the database had no such hash.
    pub(super) operator_token_sha256: Option<String>,
    pub(super) ca_sha256: Option<String>,
    /// Whether the backup contains the secrets.
    pub(super) secrets: bool,
    pub(super) sites: i64,
    pub(super) agents: i64,
}

/// The fields that all formats share.
#[derive(Deserialize)]
struct FormHeader {
    format: u32,
    #[serde(default)]
    landfall: String,
}

impl Manifest {
    /// The manifest as JSON, which is the first entry of the backup.
    pub(super) fn write(&self) -> anyhow::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self).context("write the manifest")?;
        text.push(b'\n');
        Ok(text)
    }

    /// Parses a manifest. Rejects a format that this program does not know.
    pub(super) fn read(content: &[u8]) -> anyhow::Result<Self> {
        let form: FormHeader = serde_json::from_slice(content).context("it is damaged: its manifest cannot be read")?;
        if form.format != FORMAT {
            bail!(
                "it has format {} of landfall {}, but this landfall {} knows only format {FORMAT}: use the landfall \
                 that made it",
                form.format,
                form.landfall,
                env!("CARGO_PKG_VERSION")
            );
        }
        serde_json::from_slice(content).context("it is damaged: its manifest cannot be read")
    }
}
