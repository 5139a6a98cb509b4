//! The TLS configuration of requests to sites: the trusted certificate authorities, and the
//! versions of TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("read the CA certificates in {path}")]
    ExtraCa {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The file contains no certificate, or an invalid one.
    #[error("{0} contains no usable CA certificate")]
    NoAnchor(PathBuf),
    #[error("configure TLS")]
    Config(#[source] rustls::Error),
}

/// The TLS configuration of every request. The configuration trusts the certificate authorities of
/// the public web, and the authorities in `extra_ca` (PEM).
pub fn tls_config(extra_ca: Option<&Path>) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = extra_ca {
        let wrong = |source| TlsError::ExtraCa { path: path.to_owned(), source };
        let certificates = CertificateDer::pem_file_iter(path).map_err(wrong)?;
        let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        let (added, ignored) = roots.add_parsable_certificates(certificates);
        if added == 0 || ignored > 0 {
            return Err(TlsError::NoAnchor(path.to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
