//! Exchanges the one-time token at the first scheduler that responds, and writes what came back.

use std::path::PathBuf;
use std::time::Duration;

use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_proto::v1::{EnrolRequest, EnrolResponse};
use tonic::transport::Channel;

use super::authority_fingerprint::pinned_authority;
use super::enrolment::Enrolment;
use super::error::EnrolError;
use super::settings::{CA_FILE, CREDENTIAL_FILE, ExistingSettings};
use super::written_files::write_atomically;
use crate::config::{Config, FILE, SchedulerUrl};
use crate::session::endpoint::endpoint;
use crate::session::unreached;

/// Time limit for the scheduler's response, which comes only after a commit to the scheduler's
/// database.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

pub async fn enrol(enrolment: &Enrolment) -> Result<(PathBuf, Config), EnrolError> {
    let file = enrolment.dir.join(FILE);
    if file.exists() && !enrolment.force {
        return Err(EnrolError::Enrolled(enrolment.dir.clone()));
    }
    let schedulers = SchedulerUrl::parse_all(&enrolment.schedulers)?;
    // A token works only once, so everything else that can fail is tried first.
    std::fs::create_dir_all(&enrolment.dir)
        .map_err(|source| EnrolError::Write { path: enrolment.dir.clone(), source })?;
    let existing = ExistingSettings::read(&file)?;
    let with_ca = schedulers.iter().any(|scheduler| scheduler.tls);
    // Check the configuration before using the token. Placeholders replace the scheduler's
    // response.
    let unknown = EnrolResponse { name: "-".into(), city: "-".into(), carrier: "-".into(), ..EnrolResponse::default() };
    existing.with(enrolment, with_ca, &unknown)?;
    let (scheduler, ca, channel) = reach(&schedulers, enrolment.ca_fingerprint.as_deref()).await?;
    let request = EnrolRequest { token: enrolment.token.trim().to_owned() };
    let mut client = AgentServiceClient::new(channel);
    let response = tokio::time::timeout(ANSWER_TIMEOUT, client.enrol(request)).await.map_err(|_| {
        let reason = format!("no answer within {ANSWER_TIMEOUT:?}; if the token was used, ask for another");
        EnrolError::Connect { scheduler: scheduler.url.to_string(), reason }
    })?;
    let response = match response {
        Ok(response) => response.into_inner(),
        // A status with a source was not sent by the scheduler. The client made it because the
        // connection broke.
        Err(status) if std::error::Error::source(&status).is_some() => {
            let reason = unreached::why_broken(scheduler, &status).await;
            return Err(EnrolError::Connect { scheduler: scheduler.url.to_string(), reason });
        }
        Err(status) => return Err(EnrolError::Refused(status.message().to_owned())),
    };
    let (text, config) = existing.with(enrolment, ca.is_some(), &response)?;
    if let Some(ca) = &ca {
        write_atomically(&enrolment.dir.join(CA_FILE), ca.as_bytes(), 0o644)?;
    }
    write_atomically(&enrolment.dir.join(CREDENTIAL_FILE), response.credential.as_bytes(), 0o600)?;
    write_atomically(&file, text.as_bytes(), existing.mode())?;
    Ok((file, config))
}

/// Connects to the first scheduler that responds. Returns this scheduler and its authority (PEM).
async fn reach<'a>(
    schedulers: &'a [SchedulerUrl],
    fingerprint: Option<&str>,
) -> Result<(&'a SchedulerUrl, Option<String>, Channel), EnrolError> {
    let mut failed = EnrolError::NoFingerprint;
    for scheduler in schedulers {
        let connected = async {
            let ca = match (fingerprint, scheduler.tls) {
                (_, false) => None,
                (None, true) => return Err(EnrolError::NoFingerprint),
                (Some(fingerprint), true) => Some(pinned_authority(scheduler, fingerprint).await?),
            };
            Ok((ca.clone(), connect(scheduler, ca.as_deref()).await?))
        };
        match connected.await {
            Ok((ca, channel)) => return Ok((scheduler, ca, channel)),
            // If this scheduler cannot be reached, another may respond. Only the operator can
            // fix any other error.
            Err(error @ EnrolError::Connect { .. }) => failed = error,
            Err(error) => return Err(error),
        }
    }
    Err(failed)
}

pub(super) async fn connect(scheduler: &SchedulerUrl, ca: Option<&str>) -> Result<Channel, EnrolError> {
    let failed = |error: tonic::transport::Error| EnrolError::Connect {
        scheduler: scheduler.url.to_string(),
        reason: unreached::why(&error),
    };
    endpoint(scheduler, ca).map_err(failed)?.connect().await.map_err(failed)
}
