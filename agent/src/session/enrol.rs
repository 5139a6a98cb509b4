//! Enrolment: exchanges a one-time token for a permanent credential, and writes the agent's folder.
//!
//! The scheduler has its own certificate authority, which the agent does not know yet. So the
//! operator passes the authority's fingerprint together with the token. In a first handshake the
//! agent only reads the certificates that the scheduler presents; it trusts none of them and sends
//! nothing. The certificate with the fingerprint (SHA-256) that the operator passed belongs to the
//! authority. The second connection trusts only this authority.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use data_encoding::HEXLOWER;
use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_proto::v1::{EnrolRequest, EnrolResponse};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use sha2::{Digest, Sha256};
use tonic::transport::Channel;

use crate::config::{Config, FILE, SchedulerUrl};
use crate::disk::folder;
use crate::session::endpoint::{CONNECT_TIMEOUT, DOMAIN, endpoint};
use crate::session::unreached;
pub use enrolment::Enrolment;
pub use error::EnrolError;
use settings::{CA_FILE, CREDENTIAL_FILE, ExistingSettings};

mod enrolment;
mod error;
mod settings;

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

async fn connect(scheduler: &SchedulerUrl, ca: Option<&str>) -> Result<Channel, EnrolError> {
    let failed = |error: tonic::transport::Error| EnrolError::Connect {
        scheduler: scheduler.url.to_string(),
        reason: unreached::why(&error),
    };
    endpoint(scheduler, ca).map_err(failed)?.connect().await.map_err(failed)
}

/// The certificate (PEM) with this fingerprint, among those that the scheduler presents.
async fn pinned_authority(scheduler: &SchedulerUrl, fingerprint: &str) -> Result<String, EnrolError> {
    let wanted = normalise(fingerprint).ok_or(EnrolError::BadFingerprint)?;
    let presented = presented_chain(scheduler).await?;
    let authority = presented.iter().find(|der| HEXLOWER.encode(&Sha256::digest(der)) == wanted);
    let authority = authority.ok_or_else(|| EnrolError::WrongFingerprint(scheduler.url.to_string()))?;
    Ok(pem::encode(&pem::Pem::new("CERTIFICATE", authority.to_vec())))
}

fn normalise(fingerprint: &str) -> Option<String> {
    let text = fingerprint.trim().to_ascii_lowercase();
    let text = text.strip_prefix("sha256:").unwrap_or(&text).replace(':', "");
    (text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(text)
}

/// Performs a TLS handshake only to read the presented certificates. Sends nothing over the
/// connection.
async fn presented_chain(scheduler: &SchedulerUrl) -> Result<Vec<CertificateDer<'static>>, EnrolError> {
    let failed = |reason: String| EnrolError::Connect { scheduler: scheduler.url.to_string(), reason };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let collector = Arc::new(CertificateCollector { provider: Arc::clone(&provider), seen: Mutex::default() });
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&collector) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let look = async {
        let host = scheduler.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = scheduler.url.port_or_known_default().unwrap_or(443);
        let stream = tokio::net::TcpStream::connect((host, port)).await?;
        let name = ServerName::try_from(DOMAIN).expect("a constant host name");
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.map(drop)
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, look).await {
        Err(_) => return Err(failed(format!("no answer within {CONNECT_TIMEOUT:?}"))),
        Ok(Err(error)) => return Err(failed(unreached::why(&error))),
        Ok(Ok(())) => {}
    }
    let seen = collector.seen.lock().map(|mut seen| std::mem::take(&mut *seen));
    Ok(seen.unwrap_or_default())
}

/// Records the presented certificates without verifying them.
#[derive(Debug)]
struct CertificateCollector {
    provider: Arc<CryptoProvider>,
    /// The presented chain. The chain needs a lock because rustls passes only a shared reference.
    seen: Mutex<Vec<CertificateDer<'static>>>,
}

impl ServerCertVerifier for CertificateCollector {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Ok(mut seen) = self.seen.lock() {
            *seen = std::iter::once(leaf).chain(rest).map(|der| der.clone().into_owned()).collect();
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Writes a file atomically, and syncs the file and its folder. The token cannot be used again, so
/// the file must not be lost.
fn write_atomically(path: &Path, content: &[u8], mode: u32) -> Result<(), EnrolError> {
    let failed = |source| EnrolError::Write { path: path.to_owned(), source };
    let temporary = path.with_extension("new");
    // Delete an old temporary file first, or the new file would keep the old file's permissions.
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(&temporary).map_err(failed)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    folder::leave_to_owner(&file, dir).map_err(failed)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(failed)?;
    folder::rename(&temporary, path).map_err(failed)
}

#[cfg(test)]
mod tests;
