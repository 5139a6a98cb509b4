//! Replaces the operator's token, and limits the time for which the former token stays valid.

use std::time::Duration;

use landfall_proto::v1;
use tonic::Status;

use crate::Scheduler;
use crate::grpc::errors;
use crate::grpc::operator::convert::{InvalidField, bounded, timestamp};
use crate::machine::secret::SecretHash;
use crate::store::{self, settings};

/// Maximum time that the operator's former token stays valid after its replacement.
const LONGEST_GRACE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Replaces the operator's token, if the caller presented the token in force.
pub(super) async fn replace(
    scheduler: &Scheduler,
    presented: &SecretHash,
    request: &v1::ReplaceOperatorTokenRequest,
) -> Result<v1::ReplaceOperatorTokenResponse, Status> {
    let (hash, grace) = new_token(request)?;
    let mut conn = store::acquire(&scheduler.pool).await?;
    let replaced = settings::replace_operator_token(&mut conn, presented, &hash, grace).await;
    let until = replaced?.ok_or_else(errors::former_token)?;
    tracing::warn!(former_until = %until, "the operator's token was replaced");
    let other_scheduler_urls = scheduler.wakes.others();
    let former_until = Some(timestamp(until));
    Ok(v1::ReplaceOperatorTokenResponse { former_until, other_scheduler_urls })
}

/// Parses the hash of the operator's new token, and the time for which the former token stays
/// valid.
fn new_token(request: &v1::ReplaceOperatorTokenRequest) -> Result<(SecretHash, Duration), InvalidField> {
    let hash = SecretHash::from_stored(&request.token_sha256);
    let hash = hash.ok_or_else(|| InvalidField::new("token_sha256", "not 32 bytes"))?;
    let grace = bounded("grace", request.grace, Duration::ZERO, LONGEST_GRACE)?;
    Ok((hash, grace.unwrap_or_default()))
}
