//! Makes, stores and reads the scheduler's certificate authority, and ensures that all schedulers
//! of a database have the same one.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, anyhow};
use chrono::{DateTime, Datelike, Days, Months, TimeDelta, Utc};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use sqlx::PgPool;

use crate::app::data_dir::{DataDir, write_atomically};
use crate::app::operator_token::Precedence;
use crate::machine::secret::hex;
use crate::store::settings;

/// File names of the authority's certificate and key.
pub(in crate::app) const CA: &str = "ca.pem";
pub(in crate::app) const CA_KEY: &str = "ca.key";
/// Validity of the authority in years.
const CA_YEARS: u32 = 10;
/// Remaining validity of the authority at which the operator is warned.
pub(in crate::app) const AUTHORITY_WARNED_BEFORE: TimeDelta = TimeDelta::days(365);

/// How to get a new authority after the folder of the old one has been moved away.
pub(in crate::app) const NEW_AUTHORITY: &str = "start again (with --replace-secrets if --database-url is set; copy the new folder \
                                                to your other schedulers), and enrol every agent again";

/// Makes the authority in the folder `dir`, unless it already exists.
pub(super) fn ensure(dir: &Path, now: DateTime<Utc>) -> anyhow::Result<()> {
    make_private_dir(dir)?;
    let (ca_path, key_path) = (dir.join(CA), dir.join(CA_KEY));
    // The key is written before the certificate, so that agents never pin a certificate whose key
    // was lost.
    if !ca_path.exists() {
        let key = KeyPair::generate().context("make the authority's key")?;
        let ca = authority(now)?.self_signed(&key).context("sign the authority")?;
        write_atomically(&key_path, 0o600, key.serialize_pem().as_bytes())?;
        write_atomically(&ca_path, 0o644, ca.pem().as_bytes())?;
    }
    Ok(())
}

/// Reads the authority in the folder `dir`: its certificate, and what signs certificates with its
/// key.
pub(super) fn read_authority(
    dir: &Path,
    now: DateTime<Utc>,
) -> anyhow::Result<(CertificateDer<'static>, Issuer<'static, KeyPair>)> {
    let ca_path = dir.join(CA);
    let ca = CertificateDer::from_pem_slice(read(&ca_path)?.as_bytes());
    let ca = ca.map_err(|_| anyhow!("{} contains no certificate", ca_path.display()))?;
    let key = KeyPair::from_pem(&read(&dir.join(CA_KEY))?).context("read the authority's key")?;
    Ok((ca, Issuer::new(authority(now)?, key)))
}

/// SHA-256 of the first certificate in a PEM text, in lower-case hexadecimal.
pub fn fingerprint(pem: &str) -> Option<String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    Some(sha256(&der))
}

/// SHA-256 of a certificate (DER), in lower-case hexadecimal.
pub(super) fn sha256(certificate: &[u8]) -> String {
    hex(&Sha256::digest(certificate))
}

/// The authority's parameters. The name must never change, because issued certificates contain it.
fn authority(now: DateTime<Utc>) -> anyhow::Result<CertificateParams> {
    let mut params = params(Vec::new(), "Landfall CA", now, CA_YEARS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
}

/// The parameters that every certificate of the scheduler has: its names, and its validity of
/// `years`.
pub(super) fn params(
    sans: Vec<String>,
    common_name: &str,
    now: DateTime<Utc>,
    years: u32,
) -> anyhow::Result<CertificateParams> {
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
    use super::*;

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
