//! Finds the scheduler's certificate authority by the fingerprint that the operator passed.
//!
//! The scheduler has its own certificate authority, which the agent does not know yet. So the
//! operator passes the authority's fingerprint together with the token. In a first handshake the
//! agent only reads the certificates that the scheduler presents; it trusts none of them and sends
//! nothing. The certificate with the fingerprint (SHA-256) that the operator passed belongs to the
//! authority. The second connection trusts only this authority.

use std::sync::{Arc, Mutex};

use data_encoding::HEXLOWER;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use sha2::{Digest, Sha256};

use super::error::EnrolError;
use crate::config::SchedulerUrl;
use crate::session::endpoint::{CONNECT_TIMEOUT, DOMAIN};
use crate::session::unreached;

/// The certificate (PEM) with this fingerprint, among those that the scheduler presents.
pub(super) async fn pinned_authority(scheduler: &SchedulerUrl, fingerprint: &str) -> Result<String, EnrolError> {
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
