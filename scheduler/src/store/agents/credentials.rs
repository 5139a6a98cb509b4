//! Finds the agent to which a credential was issued, also if the agent was removed or replaced.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::machine::secret::SecretHash;
use crate::model::AgentId;
use crate::store::Error;
use crate::store::rows::Rows;

/// The agent to which a credential was issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialHolder {
    pub agent: AgentId,
    pub name: String,
    pub removed_at: Option<DateTime<Utc>>,
    /// When another machine was enrolled under the agent's name; `None` while the credential is
    /// valid.
    pub replaced_at: Option<DateTime<Utc>>,
}

/// The agent to which this credential was issued, even if the agent has since been removed or
/// replaced.
pub async fn by_credential(
    conn: &mut PgConnection,
    credential: &SecretHash,
) -> Result<Option<CredentialHolder>, Error> {
    sqlx::query_as!(
        CredentialHolder,
        r#"
        select id as agent, name, removed_at, case when credential_hash <> $1 then replaced_at end as replaced_at
        from agents where credential_hash = $1 or former_credential_hash = $1
        "#,
        credential.as_bytes(),
    )
    .optional(conn)
    .await
}
