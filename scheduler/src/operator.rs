//! The operator's token, and the file that lets the operator's commands find the scheduler.
//!
//! The token lies in `DIR/operator-token` (mode 0600); the database keeps its hash alone. `DIR/client.toml` repeats it
//! beside the address, and is written anew at each start.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use crate::data_dir::{DataDir, write_atomically};
use crate::secret::{Secret, SecretHash};
use crate::store::settings;

/// The file of [`ClientFile`], in the data directory.
pub const CLIENT_FILE: &str = "client.toml";
const TOKEN_FILE: &str = "operator-token";

/// What an operator's command must know of a scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientFile {
    /// Where it answers: http on loopback, else https.
    pub scheduler: String,
    /// The certificate of its authority, PEM; none in plaintext.
    pub ca: Option<PathBuf>,
    /// The operator's token.
    pub token: String,
}

impl ClientFile {
    /// Writes it into the data directory.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write(&self, data_dir: &DataDir) -> anyhow::Result<PathBuf> {
        let path = data_dir.path().join(CLIENT_FILE);
        let text = toml::to_string(self).context("write the client's settings")?;
        write_atomically(&path, 0o600, text.as_bytes())?;
        Ok(path)
    }

    /// Reads it from a data directory; none where there is none.
    ///
    /// # Errors
    /// When it is there and cannot be used.
    pub fn read(data_dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = data_dir.join(CLIENT_FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text)
                .map(Some)
                .map_err(|error| anyhow::anyhow!("{}: {}", path.display(), error.message())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }
}

/// Whether the database is this scheduler's alone: then whoever owns the data directory owns the token too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    /// Under the data directory.
    Private,
    /// Given by URL, perhaps to several schedulers.
    Given,
}

/// The operator's token, made at the first start. None where another scheduler of the same database made it and this
/// data directory does not have it.
///
/// # Errors
/// When the file or the database cannot be used.
pub async fn token(pool: &PgPool, data_dir: &DataDir, database: Database) -> anyhow::Result<Option<String>> {
    let path = data_dir.path().join(TOKEN_FILE);
    let known = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text.trim().to_owned()).filter(|token| !token.is_empty()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    let token = match known {
        Some(token) => token,
        None => {
            let made = Secret::generate().context("make the operator's token")?.reveal().to_owned();
            // Before the database knows it: a token that nobody has would lock the operator out.
            write_atomically(&path, 0o600, format!("{made}\n").as_bytes())?;
            made
        }
    };
    let hash = SecretHash::of(&token);
    let mut conn = pool.acquire().await.context("reach the database")?;
    let in_force = settings::claim_operator_token_hash(&mut conn, &hash).await.context("store the operator's token")?;
    if in_force == hash {
        return Ok(Some(token));
    }
    if database == Database::Given {
        return Ok(None);
    }
    tracing::warn!("the operator's token was lost, a new one is made");
    settings::set_operator_token_hash(&mut conn, &hash).await.context("store the operator's token")?;
    Ok(Some(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_file_is_read_as_written() {
        let base = tempfile::tempdir().unwrap();
        let dir = DataDir::claim(&base.path().join("d")).unwrap();
        assert_eq!(ClientFile::read(dir.path()).unwrap(), None);
        for ca in [None, Some(PathBuf::from("/x/ca.pem"))] {
            let file = ClientFile { scheduler: "https://127.0.0.1:7171".to_owned(), ca, token: "t".to_owned() };
            file.write(&dir).unwrap();
            assert_eq!(ClientFile::read(dir.path()).unwrap(), Some(file));
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_second_scheduler_does_not_take_the_token_over(pool: PgPool) {
        let base = tempfile::tempdir().unwrap();
        let first = DataDir::claim(&base.path().join("first")).unwrap();
        let second = DataDir::claim(&base.path().join("second")).unwrap();
        let made = token(&pool, &first, Database::Given).await.unwrap().unwrap();
        assert_eq!(made.len(), 64);
        assert_eq!(token(&pool, &second, Database::Given).await.unwrap(), None);
        assert_eq!(token(&pool, &first, Database::Given).await.unwrap(), Some(made.clone()));
        // A private database follows its data directory.
        let replaced = token(&pool, &second, Database::Private).await.unwrap().unwrap();
        assert_ne!(replaced, made);
        assert_eq!(token(&pool, &first, Database::Given).await.unwrap(), None);
    }
}
