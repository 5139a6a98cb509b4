//! Changes what all agents and operators share: the contact URL and the operator's token. The
//! identity tells agents how to reach and recognise this scheduler.

use std::time::Duration;

use futures_util::FutureExt as _;
use landfall_proto::v1;
use tonic::Status;

use super::convert::{InvalidField, bounded, timestamp};
use crate::Scheduler;
use crate::grpc::errors;
use crate::machine::secret::SecretHash;
use crate::model::contact_url::ContactUrl;
use crate::store::settings;

/// Maximum time that the operator's former token stays valid after its replacement.
const LONGEST_GRACE: Duration = Duration::from_secs(7 * 24 * 3600);

/// How agents reach and recognise this scheduler.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The URL to which agents connect: http on loopback, else https.
    pub scheduler_url: String,
    /// SHA-256 of the CA certificate, hexadecimal; `None` without TLS.
    pub ca_fingerprint: Option<String>,
}

/// Sets the contact URL, which lets measurements begin.
pub(super) async fn set_contact_url(
    scheduler: &Scheduler,
    request: &v1::SetContactUrlRequest,
) -> Result<v1::SetContactUrlResponse, Status> {
    let contact_url = contact_url(request)?;
    let url = contact_url.as_str();
    scheduler.operators.tx("set contact URL", |tx| settings::set_contact_url(tx, url).boxed()).await?;
    scheduler.wakes.measure.notify_one();
    Ok(v1::SetContactUrlResponse {})
}

pub(super) async fn show_contact_url(scheduler: &Scheduler) -> Result<v1::ShowContactUrlResponse, Status> {
    let mut conn = scheduler.operators.read("show contact URL").await?;
    let contact_url = settings::contact_url(&mut conn).await?.unwrap_or_default();
    Ok(v1::ShowContactUrlResponse { contact_url })
}

fn contact_url(request: &v1::SetContactUrlRequest) -> Result<ContactUrl, InvalidField> {
    request.contact_url.parse().map_err(InvalidField::of("contact_url"))
}

/// Replaces the operator's token, if the caller presented the token in force.
pub(super) async fn replace_operator_token(
    scheduler: &Scheduler,
    presented: &SecretHash,
    request: &v1::ReplaceOperatorTokenRequest,
) -> Result<v1::ReplaceOperatorTokenResponse, Status> {
    let (hash, grace) = new_token(request)?;
    let hash = &hash;
    let replaced = scheduler
        .operators
        .tx("replace operator token", |tx| settings::replace_operator_token(tx, presented, hash, grace).boxed());
    let until = replaced.await?.ok_or_else(errors::former_token)?;
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
