//! Issues the certificate with which the scheduler's server proves who it is, and renews it before
//! it expires.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, TimeDelta, Utc};
use rcgen::{Certificate, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;

use super::authority::{params, read_authority};
use super::validity::not_after;
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::app::tls::prepare;

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
}
