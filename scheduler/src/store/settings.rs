//! Settings of the operator for the whole fleet. The table has exactly one row.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::machine::secret::SecretHash;

use super::types::{Interval, whole};
use super::{Error, Locked, Tx};
use crate::store::rows_and_errors::{Rows, Statement};

/// The contact URL that is sent with every request; `None` until the operator sets one.
pub async fn contact_url(conn: &mut PgConnection) -> Result<Option<String>, Error> {
    sqlx::query_scalar!("select contact_url from settings").one(conn).await
}

pub async fn set_contact_url(conn: &mut PgConnection, contact_url: &str) -> Result<(), Error> {
    sqlx::query!("update settings set contact_url = $1", contact_url).run(conn).await
}

/// The row of settings. While it is locked, nobody else changes the landmarks.
#[derive(Debug, Clone, Copy)]
pub struct Settings;

/// Locks settings and landmarks against concurrent changes until the transaction ends.
pub async fn lock(tx: &mut Tx<'_>) -> Result<Locked<Settings>, Error> {
    sqlx::query_scalar!("select singleton from settings for update").one(tx).await?;
    Ok(Locked::by(tx, Settings))
}

/// The number of dimensions of the embedding, as set by the operator. `None` means min(8, landmarks
/// − 1).
pub async fn dimensions(conn: &mut PgConnection) -> Result<Option<u32>, Error> {
    let stored = sqlx::query_scalar!("select dimensions from settings").one(conn).await?;
    Ok(stored.map(u32::from))
}

pub async fn set_dimensions(tx: &mut Tx<'_>, dimensions: Option<u32>) -> Result<Locked<Settings>, Error> {
    sqlx::query!("update settings set dimensions = $1", dimensions.map(whole::<i32, _>)).run(tx).await?;
    Ok(Locked::by(tx, Settings))
}

/// The operator's token that is valid now, and the token that it replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorTokens {
    /// The hash of the valid token; `None` until the first scheduler makes a token.
    pub in_force: Option<SecretHash>,
    /// The replaced token; `None` if no token has been replaced while schedulers were running.
    pub former: Option<FormerToken>,
}

/// An operator's token that was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormerToken {
    pub hash: SecretHash,
    pub replaced_at: DateTime<Utc>,
    /// Whether the former token is still accepted.
    pub good: bool,
}

impl OperatorTokens {
    /// The former token, if it has this hash.
    pub fn former(&self, hash: &SecretHash) -> Option<&FormerToken> {
        self.former.as_ref().filter(|former| former.hash == *hash)
    }
}

pub async fn operator_tokens(conn: &mut PgConnection) -> Result<OperatorTokens, Error> {
    let row = sqlx::query!(
        r#"
        select operator_token_hash, former_operator_token_hash, operator_token_replaced_at,
               coalesce(former_operator_token_until > now(), false) as "good!"
        from settings
        "#,
    )
    .one(conn)
    .await?;
    let hash = |bytes: Vec<u8>| {
        let problem = || Error::inconsistent("settings", "operator_token_hash", &format!("{} bytes long", bytes.len()));
        SecretHash::from_stored(&bytes).ok_or_else(problem)
    };
    let former = row.former_operator_token_hash.map(hash).transpose()?.zip(row.operator_token_replaced_at);
    Ok(OperatorTokens {
        in_force: row.operator_token_hash.map(hash).transpose()?,
        former: former.map(|(hash, replaced_at)| FormerToken { hash, replaced_at, good: row.good }),
    })
}

/// Replaces the operator's token `known` with a new one, and keeps `known` valid for `grace`.
/// Returns the time until which `known` is valid. Changes nothing and returns `None` if the
/// operator's token is not `known`.
pub async fn replace_operator_token(
    conn: &mut PgConnection,
    known: &SecretHash,
    hash: &SecretHash,
    grace: Duration,
) -> Result<Option<DateTime<Utc>>, Error> {
    sqlx::query_scalar!(
        r#"
        update settings
        set former_operator_token_hash = operator_token_hash, operator_token_replaced_at = now(),
            former_operator_token_until = now() + $3::interval, operator_token_hash = $2
        where operator_token_hash = $1
        returning former_operator_token_until as "until!"
        "#,
        known.as_bytes(),
        hash.as_bytes(),
        Interval(grace),
    )
    .optional(conn)
    .await
}

/// Sets the operator's token, whatever token was set before.
pub async fn set_operator_token_hash(conn: &mut PgConnection, hash: &SecretHash) -> Result<(), Error> {
    sqlx::query!("update settings set operator_token_hash = $1", hash.as_bytes()).run(conn).await
}

/// Sets the operator's token unless there is one already. Returns the hash of the token that is
/// valid afterwards. If several schedulers start at the same time on one database, all use the
/// token of the first scheduler.
pub async fn claim_operator_token_hash(conn: &mut PgConnection, hash: &SecretHash) -> Result<SecretHash, Error> {
    sqlx::query!("update settings set operator_token_hash = $1 where operator_token_hash is null", hash.as_bytes())
        .run(conn)
        .await?;
    Ok(operator_tokens(conn).await?.in_force.unwrap_or(*hash))
}

/// Sets the fingerprint of the certificate authority that agents trust, unless there is one
/// already. Returns the fingerprint that is valid afterwards.
pub async fn claim_ca_fingerprint(conn: &mut PgConnection, fingerprint: &str) -> Result<String, Error> {
    sqlx::query!("update settings set ca_fingerprint = $1 where ca_fingerprint is null", fingerprint).run(conn).await?;
    let stored = sqlx::query_scalar!("select ca_fingerprint from settings").one(conn).await?;
    Ok(stored.unwrap_or_else(|| fingerprint.to_owned()))
}

/// Replaces the certificate authority that agents trust. Afterwards all agents must enrol again.
pub async fn set_ca_fingerprint(conn: &mut PgConnection, fingerprint: &str) -> Result<(), Error> {
    sqlx::query!("update settings set ca_fingerprint = $1", fingerprint).run(conn).await
}
