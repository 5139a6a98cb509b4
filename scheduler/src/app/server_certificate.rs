//! The certificate with which the scheduler's server proves who it is: decides its names, issues and
//! renews it, and prepares the configuration with which the server speaks TLS.
//!
//! The scheduler uses TLS unless it listens on loopback. The certificate, for [`DOMAIN`] and the
//! scheduler's other names, is issued anew at each start and long before it expires. Open
//! connections keep their certificate. The server also sends the authority's certificate, so that
//! an agent that knows only the authority's fingerprint can verify the chain.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, TimeDelta, Utc};
use rcgen::{Certificate, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;

use super::certificate_authority::{
    self, AUTHORITY_WARNED_BEFORE, CA, NEW_AUTHORITY, not_after, params, read_authority, sha256,
};
use crate::app::address::{AdvertisedAddress, host_name};
use crate::app::data_dir::write_atomically;

/// The name in every server certificate. Clients verify this name, whatever address they connect
/// to.
pub const DOMAIN: &str = "landfall-scheduler";
/// Validity of a server certificate in years.
const SERVER_YEARS: u32 = 1;
/// Remaining validity at which a new server certificate is issued. A third of the validity leaves
/// time to fix problems.
pub(in crate::app) const RENEWED_BEFORE: TimeDelta = TimeDelta::days(120);
/// Interval at which the certificate is checked.
pub const RENEWAL_PERIOD: Duration = Duration::from_secs(3600);

/// The present certificate of the server.
#[derive(Debug)]
pub struct Leaf {
    /// The folder of the authority.
    dir: PathBuf,
    names: Vec<String>,
    /// The served certificate. The lock is never held across an await.
    served: RwLock<ServedCertificate>,
}

#[derive(Debug, Clone)]
pub(super) struct ServedCertificate {
    key: Arc<CertifiedKey>,
    until: DateTime<Utc>,
}

impl ResolvesServerCert for Leaf {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.served().key)
    }
}

impl Leaf {
    /// Issues the first certificate. Also returns the authority's certificate.
    pub(super) fn issue(
        dir: PathBuf,
        names: &[String],
        now: DateTime<Utc>,
    ) -> anyhow::Result<(Self, CertificateDer<'static>)> {
        let issued = IssuedCertificate::new(&dir, names, now)?;
        issued.write(&dir)?;
        let served = RwLock::new(issued.served()?);
        Ok((Self { dir, names: names.to_owned(), served }, issued.ca))
    }

    /// The folder of the authority.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn served(&self) -> ServedCertificate {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Issues a new certificate whenever the present one is about to expire, until `shutdown`. An
    /// error is logged, and the next check tries again.
    pub async fn keep(self: Arc<Self>, now: fn() -> DateTime<Utc>, every: Duration, shutdown: CancellationToken) {
        let mut looks = tokio::time::interval(every);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = looks.tick() => {}
            }
            let leaf = Arc::clone(&self);
            let renewed = tokio::task::spawn_blocking(move || leaf.renew_if_due(now())).await;
            let until = self.served().until;
            match renewed {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => tracing::info!(%until, "the server's certificate was renewed"),
                Ok(Err(error)) => tracing::error!(
                    error = format!("{error:#}"),
                    %until,
                    "the server's certificate could not be renewed; once it expires no agent can connect: retrying in \
                     an hour"
                ),
                Err(error) => {
                    tracing::error!(%error, "renewing the server's certificate panicked; retrying in an hour");
                }
            }
        }
    }

    /// If the certificate is about to expire, issues a new one for future connections.
    fn renew_if_due(&self, now: DateTime<Utc>) -> anyhow::Result<bool> {
        if self.served().until - now > RENEWED_BEFORE {
            return Ok(false);
        }
        let issued = IssuedCertificate::new(&self.dir, &self.names, now)?;
        // The certificate is used even if the files cannot be written, because they are only for
        // the operator to inspect.
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = issued.served()?;
        issued.write(&self.dir)?;
        Ok(true)
    }
}

struct IssuedCertificate {
    leaf: Certificate,
    key: KeyPair,
    ca: CertificateDer<'static>,
    until: DateTime<Utc>,
}

impl IssuedCertificate {
    /// Issues a certificate that is signed by the authority in `dir`.
    fn new(dir: &Path, names: &[String], now: DateTime<Utc>) -> anyhow::Result<Self> {
        let (ca, issuer) = read_authority(dir, now)?;
        let (leaf, key) = issue(names, &issuer, now)?;
        let until = not_after(leaf.der()).unwrap_or(now);
        Ok(Self { leaf, key, ca, until })
    }

    fn served(&self) -> anyhow::Result<ServedCertificate> {
        let chain = vec![self.leaf.der().clone(), self.ca.clone()];
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der()).into();
        let key = CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())
            .context("serve the certificate")?;
        Ok(ServedCertificate { key: Arc::new(key), until: self.until })
    }

    fn write(&self, dir: &Path) -> anyhow::Result<()> {
        write_atomically(&dir.join("server.key"), 0o600, self.key.serialize_pem().as_bytes())?;
        write_atomically(&dir.join("server.pem"), 0o644, self.leaf.pem().as_bytes())?;
        Ok(())
    }
}

/// Issues a server certificate. Returns it with its key.
fn issue(names: &[String], issuer: &Issuer<'_, KeyPair>, now: DateTime<Utc>) -> anyhow::Result<(Certificate, KeyPair)> {
    let mut sans = vec![DOMAIN.to_owned()];
    sans.extend(names.iter().filter(|name| name.as_str() != DOMAIN).cloned());
    let mut params = params(sans, DOMAIN, now, SERVER_YEARS)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().context("make the server's key")?;
    let leaf = params.signed_by(&key, issuer).context("sign the server's certificate")?;
    Ok((leaf, key))
}

/// The names in the server's certificate besides [`DOMAIN`](super::DOMAIN).
pub(in crate::app) fn certificate_names(address: SocketAddr, advertise: Option<&AdvertisedAddress>) -> Vec<String> {
    let mut names: Vec<String> = advertise.map(|advertised| advertised.host.clone()).into_iter().collect();
    if address.ip().is_unspecified() {
        names.extend(host_name());
        names.extend(["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()]);
    } else {
        names.push(address.ip().to_string());
    }
    names.dedup();
    names
}

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
    certificate_authority::ensure(&dir, now)?;
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
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    fn noon() -> DateTime<Utc> {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_certificate_is_issued_anew_in_its_last_third_and_a_failure_leaves_the_old_one() {
        let base = tempfile::tempdir().unwrap();
        let leaf = prepare(base.path(), &[], noon()).unwrap().leaf;
        let served = |leaf: &Leaf| leaf.served().key.cert[0].clone();
        let first = served(&leaf);
        assert_eq!(leaf.served().until, "2027-11-21T00:00:00Z".parse::<DateTime<Utc>>().unwrap());
        assert!(!leaf.renew_if_due(noon() + TimeDelta::days(200)).unwrap());
        let late = noon() + TimeDelta::days(250);
        let (key, away) = (base.path().join("tls/ca.key"), base.path().join("away"));
        fs::rename(&key, &away).unwrap();
        assert!(leaf.renew_if_due(late).is_err() && served(&leaf) == first);
        fs::rename(&away, &key).unwrap();
        assert!(leaf.renew_if_due(late).unwrap() && served(&leaf) != first);
        assert!(!leaf.renew_if_due(late).unwrap(), "it is new");
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
