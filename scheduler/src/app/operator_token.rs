//! The operator's token.
//!
//! The token is in `DIR/operator-token` (mode 0600); the database stores only its hash.

use std::io;
use std::path::Path;

use anyhow::Context;
use sqlx::PgPool;

use crate::app::data_dir::{DataDir, write_atomically};
use crate::machine::secret::{Secret, SecretHash};
use crate::store::{self, settings};

pub(super) const TOKEN_FILE: &str = "operator-token";

/// Which secrets are used if the database and the data directory have different ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// The data directory's secrets, because the operator requested it.
    Operator,
    /// The data directory's secrets, because it contains the database. A token that
    /// `landfall operator rotate` replaced does not become valid again.
    DataDir,
    /// The database's secrets, because other schedulers may use the same database.
    Database,
}

/// Returns the operator's token, which is made at the first start.
///
/// # Errors
/// When the file or the database cannot be used, or when this data directory lacks the token that
/// another scheduler of the database made.
pub async fn token(pool: &PgPool, data_dir: &DataDir, precedence: Precedence) -> anyhow::Result<String> {
    let path = data_dir.path().join(TOKEN_FILE);
    let known = held(data_dir.path())?;
    let mut conn = pool.acquire().await.context("reach the database")?;
    let tokens = settings::operator_tokens(&mut conn).await.context("read the operator's token")?;
    let former = known.as_ref().and_then(|token| tokens.former(&SecretHash::of(token)));
    if let (Some(token), Some(former)) = (&known, former)
        && precedence != Precedence::Operator
    {
        tracing::warn!(
            "the operator's token in {} was replaced at {}: copy operator-token from the data directory in which \
             `landfall operator rotate` ran; until then commands with this directory are refused",
            data_dir.path().display(),
            store::minute(&former.replaced_at)
        );
        return Ok(token.clone());
    }
    let token = match known {
        Some(token) => token,
        // The database already has the hash of a token, so it would refuse a new token.
        None if tokens.in_force.is_some() && precedence == Precedence::Database => return Err(foreign_token(data_dir)),
        None => {
            let made = Secret::generate().context("make the operator's token")?.reveal().to_owned();
            // The file is written before the database stores the hash. Otherwise a crash could
            // leave only the hash, and nobody would know the token.
            write_atomically(&path, 0o600, format!("{made}\n").as_bytes())?;
            made
        }
    };
    let hash = SecretHash::of(&token);
    let in_force = settings::claim_operator_token_hash(&mut conn, &hash).await.context("store the operator's token")?;
    if in_force != hash {
        if precedence == Precedence::Database {
            return Err(foreign_token(data_dir));
        }
        tracing::warn!("the database had another operator's token, which is void from now on");
        settings::set_operator_token_hash(&mut conn, &hash).await.context("store the operator's token")?;
    }
    Ok(token)
}

/// Reads the token from a data directory; `None` if there is none.
pub fn held(data_dir: &Path) -> anyhow::Result<Option<String>> {
    let path = data_dir.join(TOKEN_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|token| !token.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

fn foreign_token(data_dir: &DataDir) -> anyhow::Error {
    anyhow::anyhow!(
        "another scheduler set up this database, and {} does not contain its secrets: copy operator-token and the \
         folder tls (if there is one) from that scheduler's data directory into this one and start again; if they are \
         lost, --replace-secrets makes new ones",
        data_dir.path().display()
    )
}

#[cfg(test)]
mod tests {

    use super::*;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_second_scheduler_must_be_given_the_secrets_of_the_first(pool: PgPool) {
        use Precedence::{DataDir as Own, Database as Shared};
        let base = tempfile::tempdir().unwrap();
        let first = DataDir::lock(&base.path().join("first")).unwrap();
        let second = DataDir::lock(&base.path().join("second")).unwrap();
        let made = token(&pool, &first, Shared).await.unwrap();
        assert_eq!(made.len(), 64);
        let refused = token(&pool, &second, Shared).await.unwrap_err().to_string();
        assert!(refused.contains("copy operator-token") && refused.contains("second"), "{refused}");
        assert!(!second.path().join(TOKEN_FILE).exists(), "nothing is left in the way of a copy");
        assert_eq!(token(&pool, &first, Shared).await.unwrap(), made);
        std::fs::copy(first.path().join(TOKEN_FILE), second.path().join(TOKEN_FILE)).unwrap();
        assert_eq!(token(&pool, &second, Shared).await.unwrap(), made);
        // With a private database, the data directory's secrets are used.
        std::fs::remove_file(second.path().join(TOKEN_FILE)).unwrap();
        assert_ne!(token(&pool, &second, Own).await.unwrap(), made);
        assert!(token(&pool, &first, Shared).await.is_err());
    }
}
