//! The scheduler's own certificate authority. The scheduler uses TLS unless it listens on loopback.
//!
//! The authority is made once, in `DIR/tls`. It is valid for ten years, because agents pin the
//! SHA-256 of its certificate: after a replacement, every agent must be enrolled again. The
//! server's certificate, for [`DOMAIN`] and the scheduler's other names, is issued anew at each
//! start and long before it expires. Open connections keep their certificate. The server also sends
//! the authority's certificate, so that an agent that knows only the authority's fingerprint can
//! verify the chain. All schedulers of a database must have the same authority.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, anyhow};
use chrono::{DateTime, Datelike, Days, Months, TimeDelta, Utc};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::app::data_dir::{DataDir, write_atomically};
use crate::app::operator_token::Precedence;
use crate::machine::secret::hex;
use crate::store::settings;

mod validity;

pub(in crate::app) use validity::validity;

/// The name in every server certificate. Clients verify this name, whatever address they connect
/// to.
pub const DOMAIN: &str = "landfall-scheduler";
/// File names of the authority's certificate and key.
pub(in crate::app) const CA: &str = "ca.pem";
pub(in crate::app) const CA_KEY: &str = "ca.key";
/// Validity of the authority in years.
const CA_YEARS: u32 = 10;
/// Validity of a server certificate in years.
const SERVER_YEARS: u32 = 1;
/// Remaining validity at which a new server certificate is issued. A third of the validity leaves
/// time to fix problems.
pub(in crate::app) const RENEWED_BEFORE: TimeDelta = TimeDelta::days(120);
/// Interval at which the certificate is checked.
pub const RENEWAL_PERIOD: Duration = Duration::from_secs(3600);
/// Remaining validity of the authority at which the operator is warned.
pub(in crate::app) const AUTHORITY_WARNED_BEFORE: TimeDelta = TimeDelta::days(365);

/// How to get a new authority after the folder of the old one has been moved away.
pub(in crate::app) const NEW_AUTHORITY: &str = "start again (with --replace-secrets if --database-url is set; copy the new folder \
                                                to your other schedulers), and enrol every agent again";

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
        let (day, tls) = (self.ca_ends?.format("%Y-%m-%d"), self.leaf.dir.display());
        Some(format!(
            "the certificate authority in {tls} expires on {day}: before that day move the folder away, {NEW_AUTHORITY}"
        ))
    }
}

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
struct ServedCertificate {
    key: Arc<CertifiedKey>,
    until: DateTime<Utc>,
}

impl ResolvesServerCert for Leaf {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.served().key)
    }
}

impl Leaf {
    fn served(&self) -> ServedCertificate {
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

/// Installs the cryptography provider of rustls for this process.
pub fn install_crypto() {
    // A second installation fails, which is harmless because the first one installed the same
    // provider.
    drop(rustls::crypto::ring::default_provider().install_default());
}

/// Reads the authority in `data_dir`, or makes it, and issues a server certificate for `names`.
pub fn prepare(data_dir: &Path, names: &[String], now: DateTime<Utc>) -> anyhow::Result<ServerTls> {
    let dir = data_dir.join("tls");
    make_private_dir(&dir)?;
    let (ca_path, key_path) = (dir.join(CA), dir.join(CA_KEY));
    // The key is written before the certificate, so that agents never pin a certificate whose key
    // was lost.
    if !ca_path.exists() {
        let key = KeyPair::generate().context("make the authority's key")?;
        let ca = authority(now)?.self_signed(&key).context("sign the authority")?;
        write_atomically(&key_path, 0o600, key.serialize_pem().as_bytes())?;
        write_atomically(&ca_path, 0o644, ca.pem().as_bytes())?;
    }
    let issued = IssuedCertificate::new(&dir, names, now)?;
    issued.write(&dir)?;
    let ca_ends = validity::not_after(&issued.ca).filter(|until| *until - now < AUTHORITY_WARNED_BEFORE);
    let ca_fingerprint = hex(&Sha256::digest(&issued.ca));
    let served = RwLock::new(issued.served()?);
    let leaf = Arc::new(Leaf { dir, names: names.to_owned(), served });
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("serve the certificate")?
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(&leaf) as Arc<dyn ResolvesServerCert>);
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(ServerTls { config: Arc::new(config), leaf, ca_fingerprint, ca_path, ca_ends })
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
        let ca_path = dir.join(CA);
        let ca = CertificateDer::from_pem_slice(read(&ca_path)?.as_bytes());
        let ca = ca.map_err(|_| anyhow!("{} contains no certificate", ca_path.display()))?;
        let key = KeyPair::from_pem(&read(&dir.join(CA_KEY))?).context("read the authority's key")?;
        let (leaf, key) = issue(names, &Issuer::new(authority(now)?, key), now)?;
        let until = validity::not_after(leaf.der()).unwrap_or(now);
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

/// SHA-256 of the first certificate in a PEM text, in lower-case hexadecimal.
pub fn fingerprint(pem: &str) -> Option<String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    Some(hex(&Sha256::digest(&der)))
}

/// The authority's parameters. The name must never change, because issued certificates contain it.
fn authority(now: DateTime<Utc>) -> anyhow::Result<CertificateParams> {
    let mut params = params(Vec::new(), "Landfall CA", now, CA_YEARS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
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

fn params(sans: Vec<String>, common_name: &str, now: DateTime<Utc>, years: u32) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::default();
    for name in sans {
        params.subject_alt_names.push(match name.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) => SanType::DnsName(
                name.try_into().map_err(|error: rcgen::Error| anyhow!(error).context("read a host name"))?,
            ),
        });
    }
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    // The certificate is valid from yesterday on, because a client's clock may be slow.
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

fn make_private_dir(dir: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;

    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("make {}", dir.display()))
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// Ensures that all schedulers of a database have the same certificate authority.
///
/// # Errors
/// When the database cannot be used, or when agents trust an authority other than this data
/// directory's.
pub async fn claim_authority(
    pool: &PgPool,
    data_dir: &DataDir,
    fingerprint: &str,
    precedence: Precedence,
) -> anyhow::Result<()> {
    let mut conn = pool.acquire().await.context("reach the database")?;
    let in_force = settings::claim_ca_fingerprint(&mut conn, fingerprint).await.context("store the authority")?;
    if in_force == fingerprint {
        return Ok(());
    }
    if precedence == Precedence::Database {
        anyhow::bail!(
            "the agents of this database trust another certificate authority than the one in {}: copy the folder tls \
             from the data directory of the first scheduler and start again; if it is lost, --replace-secrets makes \
             this authority the valid one, and every agent on another machine must be enrolled again",
            data_dir.path().join("tls").display()
        );
    }
    tracing::warn!("the certificate authority was replaced: agents that trusted the former one must be enrolled again");
    settings::set_ca_fingerprint(&mut conn, fingerprint).await.context("store the authority")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustls::pki_types::{ServerName, UnixTime};

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

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_second_scheduler_must_be_given_the_authority_of_the_first(pool: PgPool) {
        use Precedence::{DataDir as Own, Database as Shared};
        let base = tempfile::tempdir().unwrap();
        let first = DataDir::lock(&base.path().join("first")).unwrap();
        let second = DataDir::lock(&base.path().join("second")).unwrap();
        claim_authority(&pool, &first, "aa", Shared).await.unwrap();
        let refused = claim_authority(&pool, &second, "bb", Shared).await.unwrap_err().to_string();
        assert!(refused.contains("copy the folder tls"), "{refused}");
        claim_authority(&pool, &second, "aa", Shared).await.unwrap();
        claim_authority(&pool, &second, "bb", Own).await.unwrap();
        assert!(claim_authority(&pool, &first, "aa", Shared).await.is_err());
    }
}
