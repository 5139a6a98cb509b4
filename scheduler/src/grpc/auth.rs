//! Who is calling: the operator by their token, an agent by its credential.
//!
//! Both come as `authorization: Bearer SECRET`; only hashes are stored and compared. Every handler asks first.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::Scheduler;
use crate::secret::SecretHash;
use crate::store::agents::{self, Holder};
use crate::store::{self, settings};

use super::status;

/// Why a caller is not let in.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// No secret was presented.
    #[error("the metadata `authorization: Bearer SECRET` is missing")]
    Missing,
    /// It is not the operator's.
    #[error("the operator token is wrong")]
    WrongOperatorToken,
    /// It was the operator's.
    #[error("the operator's token was replaced at {}", store::minute(.0))]
    ReplacedOperatorToken(DateTime<Utc>),
    /// It is no agent's.
    #[error("the credential is not known: enrol the agent again")]
    WrongCredential,
    /// The operator removed the agent.
    #[error("agent {0} was removed by the operator: enrol it again under its name to have it back")]
    Removed(String),
    /// Another machine was enrolled in the agent's place.
    #[error("agent {name} was moved to another machine at {}, and this one's credential is void: landfall agents enrol --name {name} --replace moves it back", store::minute(.at))]
    Replaced {
        /// Its name.
        name: String,
        /// When.
        at: DateTime<Utc>,
    },
    /// The store failed.
    #[error("look up a credential")]
    Store(#[from] store::Error),
}

/// Lets the operator pass; returns the hash of the token they presented.
///
/// # Errors
/// `Unauthenticated` for everybody else.
pub async fn operator(scheduler: &Scheduler, metadata: &MetadataMap) -> Result<SecretHash, Status> {
    // Before the database is asked, so that a stranger costs nothing.
    let presented = presented(metadata).map_err(status::from_auth)?;
    let mut conn = scheduler.pool.acquire().await.map_err(|error| status::from_store(error.into()))?;
    let known = settings::operator_tokens(&mut conn).await.map_err(status::from_store)?;
    match known.former(&presented) {
        _ if known.in_force == Some(presented) => Ok(presented),
        Some(former) if former.good => Ok(presented),
        Some(former) => Err(status::from_auth(AuthError::ReplacedOperatorToken(former.replaced_at))),
        None => Err(status::from_auth(AuthError::WrongOperatorToken)),
    }
}

/// What an agent presents to show who it is.
#[derive(Debug, Clone, Copy)]
pub struct Credential(SecretHash);

impl Credential {
    /// What came with a call.
    ///
    /// # Errors
    /// `Unauthenticated` when there is none.
    pub fn presented(metadata: &MetadataMap) -> Result<Self, Status> {
        presented(metadata).map(Self).map_err(status::from_auth)
    }

    /// The agent it belongs to now.
    ///
    /// # Errors
    /// `Unauthenticated` when it is nobody's, or that of an agent that was removed; `PermissionDenied` when another machine was
    /// enrolled in that agent's place.
    pub async fn agent(&self, conn: &mut PgConnection) -> Result<Holder, Status> {
        let holder = agents::by_credential(conn, &self.0).await.map_err(status::from_store)?;
        let holder = holder.ok_or_else(|| status::from_auth(AuthError::WrongCredential))?;
        if let Some(at) = holder.replaced_at {
            return Err(status::from_auth(AuthError::Replaced { name: holder.name, at }));
        }
        if holder.removed_at.is_some() {
            return Err(status::from_auth(AuthError::Removed(holder.name)));
        }
        Ok(holder)
    }
}

fn presented(metadata: &MetadataMap) -> Result<SecretHash, AuthError> {
    let text = metadata.get("authorization").and_then(|value| value.to_str().ok()).ok_or(AuthError::Missing)?;
    let (scheme, secret) = text.split_once(' ').ok_or(AuthError::Missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(AuthError::Missing);
    }
    Ok(SecretHash::of(secret.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_is_looked_at() {
        let with = |text: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("authorization", text.parse().expect("ASCII"));
            presented(&metadata).ok()
        };
        assert_eq!(with("Bearer abc"), Some(SecretHash::of("abc")));
        assert_eq!(with("bearer  abc "), Some(SecretHash::of("abc")));
        assert_eq!(with("Basic abc"), None);
        assert_eq!(with("abc"), None);
    }
}
