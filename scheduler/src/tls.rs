//! The scheduler's own certificate authority, for listeners off loopback.
//!
//! The authority is made once, in `DIR/tls`; agents pin the SHA-256 of its certificate, so it stays for ten years. The
//! server's certificate is issued anew at each start, for [`DOMAIN`] and whatever names the scheduler is reached by. The
//! chain that is sent holds the authority too, so that an agent that knows only the fingerprint can check it.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Datelike, Days, Months, Utc};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use sha2::{Digest, Sha256};
use tonic::transport::{Identity, ServerTlsConfig};

use crate::data_dir::{DataDirError, write_atomically};
use crate::secret::hex;

/// The name every server certificate carries, whatever address it is reached at; clients verify this one.
pub const DOMAIN: &str = "landfall-scheduler";
/// How long the authority is valid.
const CA_YEARS: u32 = 10;
/// How long a server certificate is valid.
const SERVER_YEARS: u32 = 1;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate could not be made or read.
    #[error("{what}")]
    Certificate {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: rcgen::Error,
    },
    /// A stored file is not what it should be.
    #[error("{0} holds no certificate")]
    NoCertificate(PathBuf),
    /// A file could not be read or made.
    #[error("{what} {path}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] DataDirError),
}

/// What a server needs to speak TLS, and a client to know it by.
#[derive(Debug)]
pub struct ServerTls {
    /// For tonic.
    pub config: ServerTlsConfig,
    /// SHA-256 of the authority's certificate, in lower-case hexadecimal.
    pub ca_fingerprint: String,
    /// The authority's certificate, PEM.
    pub ca_path: PathBuf,
}

/// Chooses the provider of cryptography, once for the process.
pub fn install_crypto() {
    // A second installation is refused, and the first stands: it was the same.
    drop(rustls::crypto::ring::default_provider().install_default());
}

/// Reads or makes the authority in `data_dir`, and issues a server certificate for `names`.
///
/// # Errors
/// When the files cannot be used.
pub fn prepare(data_dir: &Path, names: &[String], now: DateTime<Utc>) -> Result<ServerTls, TlsError> {
    let dir = data_dir.join("tls");
    make_private_dir(&dir)?;
    let ca_path = dir.join("ca.pem");
    let key_path = dir.join("ca.key");
    // The key is written first: a certificate without its key would be pinned and lost.
    if !ca_path.exists() {
        let key = KeyPair::generate().map_err(certificate("make the authority's key"))?;
        let ca = authority(now)?.self_signed(&key).map_err(certificate("sign the authority"))?;
        write_atomically(&key_path, 0o600, key.serialize_pem().as_bytes())?;
        write_atomically(&ca_path, 0o644, ca.pem().as_bytes())?;
    }
    let ca_pem = read(&ca_path)?;
    let key = KeyPair::from_pem(&read(&key_path)?).map_err(certificate("read the authority's key"))?;
    let (leaf_pem, leaf_key) = issue(names, &Issuer::new(authority(now)?, key), now)?;
    write_atomically(&dir.join("server.key"), 0o600, leaf_key.as_bytes())?;
    write_atomically(&dir.join("server.pem"), 0o644, leaf_pem.as_bytes())?;
    Ok(ServerTls {
        config: ServerTlsConfig::new().identity(Identity::from_pem(format!("{leaf_pem}{ca_pem}"), leaf_key)),
        ca_fingerprint: fingerprint(&ca_pem).ok_or_else(|| TlsError::NoCertificate(ca_path.clone()))?,
        ca_path,
    })
}

/// SHA-256 of the first certificate in a PEM text, in lower-case hexadecimal.
pub fn fingerprint(pem: &str) -> Option<String> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    Some(hex(&Sha256::digest(&der)))
}

/// The authority's parameters. Its name never changes: certificates name their issuer by it.
fn authority(now: DateTime<Utc>) -> Result<CertificateParams, TlsError> {
    let mut params = params(Vec::new(), "Landfall CA", now, CA_YEARS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
}

/// A server certificate and its key, PEM.
fn issue(names: &[String], issuer: &Issuer<'_, KeyPair>, now: DateTime<Utc>) -> Result<(String, String), TlsError> {
    let mut sans = vec![DOMAIN.to_owned()];
    sans.extend(names.iter().filter(|name| name.as_str() != DOMAIN).cloned());
    let mut params = params(sans, DOMAIN, now, SERVER_YEARS)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(certificate("make the server's key"))?;
    let leaf = params.signed_by(&key, issuer).map_err(certificate("sign the server's certificate"))?;
    Ok((leaf.pem(), key.serialize_pem()))
}

fn params(sans: Vec<String>, common_name: &str, now: DateTime<Utc>, years: u32) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::default();
    for name in sans {
        params.subject_alt_names.push(match name.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) => SanType::DnsName(name.try_into().map_err(certificate("read a host name"))?),
        });
    }
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    // From yesterday: a client's clock may be behind.
    let from = now.checked_sub_days(Days::new(1)).unwrap_or(now);
    let until = now.checked_add_months(Months::new(12 * years)).unwrap_or(now);
    let (year, month, day) = calendar(from);
    params.not_before = rcgen::date_time_ymd(year, month, day);
    let (year, month, day) = calendar(until);
    params.not_after = rcgen::date_time_ymd(year, month, day);
    Ok(params)
}

fn calendar(day: DateTime<Utc>) -> (i32, u8, u8) {
    let (month, day_of_month) = (u8::try_from(day.month()), u8::try_from(day.day()));
    (day.year(), month.expect("a month is 1 to 12"), day_of_month.expect("a day is 1 to 31"))
}

fn make_private_dir(dir: &Path) -> Result<(), TlsError> {
    use std::os::unix::fs::DirBuilderExt;

    let io = |source| TlsError::Io { what: "make", path: dir.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)
}

fn read(path: &Path) -> Result<String, TlsError> {
    fs::read_to_string(path).map_err(|source| TlsError::Io { what: "read", path: path.to_owned(), source })
}

fn certificate(what: &'static str) -> impl FnOnce(rcgen::Error) -> TlsError {
    move |source| TlsError::Certificate { what, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

    use super::*;

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
    fn a_client_that_trusts_the_authority_accepts_the_server_under_every_name() {
        install_crypto();
        let base = tempfile::tempdir().unwrap();
        // The authority is years older than the certificate it signs.
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
