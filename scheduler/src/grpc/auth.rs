//! Decides which calls need the operator's token, an agent's credential or neither, and checks
//! both.
//!
//! A token or credential is sent as `authorization: Bearer SECRET`. Only hashes of secrets are
//! stored and compared. The gate checks the secret before any handler runs, and stores the caller
//! in the request's extensions.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use landfall_proto::v1::agent_service_server;
use sqlx::PgConnection;
use tonic::Status;
use tonic::codegen::http::{Extensions, HeaderMap};
use tonic_health::pb::health_server;

use super::port::connections::Connection;
use super::port::guesses::Guess;
use crate::machine::secret::SecretHash;
use crate::store::agents::{self, CredentialHolder};
use crate::store::{self, settings};

/// Why a caller is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthError {
    #[error("the metadata `authorization: Bearer SECRET` is missing")]
    Missing,
    #[error("the operator token is wrong")]
    WrongOperatorToken,
    #[error("the operator's token was replaced at {}", store::minute(.0))]
    ReplacedOperatorToken(DateTime<Utc>),
    #[error("the credential is unknown: enrol the agent again")]
    WrongCredential,
    #[error("agent {0} was removed by the operator: enrol it again under its name to restore it")]
    Removed(String),
    #[error("agent {name} was moved to another machine at {}, and this one's credential is void: landfall agents enrol --name {name} --replace moves it back", store::minute(.at))]
    Replaced { name: String, at: DateTime<Utc> },
    #[error("look up a credential")]
    Store(#[from] store::Error),
}

/// Who may make a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AllowedCallers {
    Anybody,
    Agents,
    Operator,
}

impl AllowedCallers {
    /// Who may call an rpc. An rpc that is not listed here is only for the operator, so a new
    /// service is closed by default.
    pub(super) fn of(path: &str) -> Self {
        match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
            // An agent that enrols has no credential yet; its request contains an enrolment token.
            Some((health_server::SERVICE_NAME, _) | (agent_service_server::SERVICE_NAME, "Enrol")) => Self::Anybody,
            Some((agent_service_server::SERVICE_NAME, _)) => Self::Agents,
            _ => Self::Operator,
        }
    }
}

/// Whether a path leads to a page rather than to a gRPC service. The first part of a path contains
/// a dot only if it is the name of a gRPC service. The dashboard itself checks who may see its
/// pages, because browsers send a cookie instead of a token.
pub(crate) fn is_page(path: &str) -> bool {
    !path.trim_start_matches('/').split('/').next().is_some_and(|first| first.contains('.'))
}

/// The operator, with the hash of the presented token.
#[derive(Debug, Clone)]
pub(crate) struct Operator(pub(crate) SecretHash);

pub(crate) async fn operator(conn: &mut PgConnection, presented: SecretHash) -> Result<Operator, AuthError> {
    let known = settings::operator_tokens(conn).await?;
    match known.former(&presented) {
        _ if known.in_force == Some(presented) => Ok(Operator(presented)),
        Some(former) if former.good => Ok(Operator(presented)),
        Some(former) => Err(AuthError::ReplacedOperatorToken(former.replaced_at)),
        None => Err(AuthError::WrongOperatorToken),
    }
}

/// An agent, with its presented credential.
#[derive(Debug, Clone)]
pub(super) struct Agent {
    pub(super) holder: CredentialHolder,
    pub(super) credential: Credential,
}

/// The caller, as stored by the gate.
pub(super) fn caller<C: Clone + Send + Sync + 'static, M>(request: &tonic::Request<M>) -> Result<C, Status> {
    request.extensions().get().cloned().ok_or_else(|| AuthError::Missing.into())
}

/// The hash of the credential that an agent presents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Credential(pub(super) SecretHash);

impl Credential {
    /// Finds the agent to which the credential now belongs.
    ///
    /// # Errors
    /// For an unknown credential, a removed agent, or an agent that another machine has replaced.
    pub(super) async fn agent(&self, conn: &mut PgConnection) -> Result<CredentialHolder, AuthError> {
        let holder = agents::by_credential(conn, &self.0).await?;
        let holder = holder.ok_or(AuthError::WrongCredential)?;
        if let Some(at) = holder.replaced_at {
            return Err(AuthError::Replaced { name: holder.name, at });
        }
        if holder.removed_at.is_some() {
            return Err(AuthError::Removed(holder.name));
        }
        Ok(holder)
    }
}

/// The hash of the secret in the header `authorization`.
pub(crate) fn presented(headers: &HeaderMap) -> Result<SecretHash, AuthError> {
    let text = headers.get("authorization").and_then(|value| value.to_str().ok()).ok_or(AuthError::Missing)?;
    let (scheme, secret) = text.split_once(' ').ok_or(AuthError::Missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(AuthError::Missing);
    }
    Ok(SecretHash::of(secret.trim()))
}

impl Guess for AuthError {
    /// A removed agent and a former token count too, because they cause the same work.
    fn is_wrong(&self) -> bool {
        !matches!(self, Self::Missing | Self::Store(_))
    }
}

/// The client's address.
pub(crate) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<Connection>().map(|connection| connection.address().ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_is_looked_at() {
        let with = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("authorization", text.parse().expect("ASCII"));
            presented(&headers).ok()
        };
        assert_eq!(with("Bearer abc"), Some(SecretHash::of("abc")));
        assert_eq!(with("bearer  abc "), Some(SecretHash::of("abc")));
        assert_eq!(with("Basic abc"), None);
        assert_eq!(with("abc"), None);
    }
}
