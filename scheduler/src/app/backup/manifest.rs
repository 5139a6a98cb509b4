//! A backup's first entry: its format, its time, and the fleet that it belongs to.

use anyhow::{Context, bail};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// The form of backups that this program writes, and the only one so far.
pub(super) const FORMAT: u32 = 1;

/// The description of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    /// The version that made it.
    pub(super) landfall: String,
    /// The time of the snapshot, by the database's clock.
    pub(super) made_at: DateTime<Utc>,
    /// The newest migration of its database.
    pub(super) schema: i64,
    /// The major version of the server it was taken from, and of the `pg_dump` that wrote it.
    pub(super) postgres: u32,
    pub(super) pg_dump: u32,
    /// SHA-256 of the operator's token and of the authority's certificate, hexadecimal. They
    /// identify the secrets that belong to the backup, whether it contains them or not. `None` if
    /// the database knew none.
    pub(super) operator_token_sha256: Option<String>,
    pub(super) ca_sha256: Option<String>,
    /// Whether the backup contains the secrets.
    pub(super) secrets: bool,
    pub(super) sites: i64,
    pub(super) agents: i64,
}

/// What is the same in all forms.
#[derive(Deserialize)]
struct FormHeader {
    format: u32,
    #[serde(default)]
    landfall: String,
}

impl Manifest {
    /// As the first entry's content.
    pub(super) fn write(&self) -> anyhow::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self).context("write the manifest")?;
        text.push(b'\n');
        Ok(text)
    }

    /// Reads it; refuses a form that is not this program's.
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
