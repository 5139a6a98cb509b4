//! Prepares the configuration with which the scheduler's server speaks TLS, and warns when the
//! certificate authority nears its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use chrono::{DateTime, Utc};
use rustls::ServerConfig;
use rustls::server::ResolvesServerCert;

use super::authority::{self, AUTHORITY_WARNED_BEFORE, CA, NEW_AUTHORITY, sha256};
use super::server_certificate::Leaf;
use super::validity::not_after;

/// A server's TLS configuration, and the data with which clients verify the server.
#[derive(Debug)]
pub struct ServerTls {
    pub config: Arc<ServerConfig>,
    pub leaf: Arc<Leaf>,
    /// SHA-256 of the authority's certificate, in lower-case hexadecimal.
    pub ca_fingerprint: String,
    /// The file with the authority's certificate, PEM.
    pub ca_path: PathBuf,
    /// When the authority expires; `None` if that is more than a year away.
    ca_ends: Option<DateTime<Utc>>,
}

impl ServerTls {
    /// The warning for the operator during the authority's last year.
    pub fn warning(&self) -> Option<String> {
        let (day, tls) = (self.ca_ends?.format("%Y-%m-%d"), self.leaf.dir().display());
        Some(format!(
            "the certificate authority in {tls} expires on {day}: before that day move the folder away, {NEW_AUTHORITY}"
        ))
    }
}

/// Installs the cryptography provider of rustls for this process.
pub fn install_crypto() {
    // A second installation fails, which is harmless because the first one installed the same
    // provider.
    drop(rustls::crypto::ring::default_provider().install_default());
}

/// Reads the authority in `data_dir`, or makes it, and issues a server certificate for `names`.
pub fn prepare(data_dir: &Path, names: &[String], now: DateTime<Utc>) -> anyhow::Result<ServerTls> {
    let dir = data_dir.join("tls");
    authority::ensure(&dir, now)?;
    let ca_path = dir.join(CA);
    let (leaf, ca) = Leaf::issue(dir, names, now)?;
    let ca_ends = not_after(&ca).filter(|until| *until - now < AUTHORITY_WARNED_BEFORE);
    let ca_fingerprint = sha256(&ca);
    let leaf = Arc::new(leaf);
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("serve the certificate")?
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(&leaf) as Arc<dyn ResolvesServerCert>);
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(ServerTls { config: Arc::new(config), leaf, ca_fingerprint, ca_path, ca_ends })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

    use super::*;
    use crate::app::tls::DOMAIN;

    fn noon() -> DateTime<Utc> {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn the_authority_stays_and_the_server_certificate_is_new() {
        let base = tempfile::tempdir().unwrap();
        let first = prepare(base.path(), &[], noon()).unwrap();
        let leaf = fs::read(base.path().join("tls/server.pem")).unwrap();
        let second = prepare(base.path(), &[], noon()).unwrap();
        assert_eq!(first.ca_fingerprint, second.ca_fingerprint);
        assert_eq!(first.ca_fingerprint.len(), 64);
        assert_ne!(leaf, fs::read(base.path().join("tls/server.pem")).unwrap());
        for secret in ["tls/ca.key", "tls/server.key"] {
            assert_eq!(fs::metadata(base.path().join(secret)).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn the_end_of_the_authority_is_told_in_its_last_year() {
        let base = tempfile::tempdir().unwrap();
        let ends = |now: &str| prepare(base.path(), &[], now.parse().unwrap()).unwrap().ca_ends;
        assert_eq!(ends("2026-11-21T12:00:00Z"), None);
        assert_eq!(ends("2035-11-01T12:00:00Z"), None);
        assert_eq!(ends("2035-12-01T12:00:00Z"), Some("2036-11-21T00:00:00Z".parse().unwrap()));
    }

    #[test]
    fn a_client_that_trusts_the_authority_accepts_the_server_under_every_name() {
        install_crypto();
        let base = tempfile::tempdir().unwrap();
        // The authority is years older than the certificate that it signs.
        prepare(base.path(), &[], "2020-02-29T00:00:00Z".parse().unwrap()).unwrap();
        let names = ["192.0.2.7".to_owned(), "scheduler.example.org".to_owned()];
        prepare(base.path(), &names, noon()).unwrap();
        let der = |file: &str| CertificateDer::from_pem_file(base.path().join(file)).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(der("tls/ca.pem")).unwrap();
        let verifier = rustls::client::WebPkiServerVerifier::builder(Arc::new(roots)).build().unwrap();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(noon().timestamp().try_into().unwrap()));
        let verify = |name: &str| {
            use rustls::client::danger::ServerCertVerifier;
            let name = ServerName::try_from(name.to_owned()).unwrap();
            verifier.verify_server_cert(&der("tls/server.pem"), &[], &name, &[], now)
        };
        for name in [DOMAIN, "192.0.2.7", "scheduler.example.org"] {
            verify(name).unwrap();
        }
        assert!(verify("elsewhere.example.org").is_err());
    }
}
