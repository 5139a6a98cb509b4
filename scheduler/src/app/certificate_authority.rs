//! Makes, stores and reads the scheduler's certificate authority, ensures that all schedulers of a
//! database have the same one, and reads how long a certificate is valid.
//!
//! The authority is made once, in `DIR/tls`. It is valid for ten years, because agents pin the
//! SHA-256 of its certificate: after a replacement, every agent must be enrolled again.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, anyhow};
use chrono::{DateTime, Datelike, Days, Months, NaiveDateTime, TimeDelta, Utc};
use futures_util::FutureExt as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};

use crate::app::data_dir::{DataDir, write_atomically};
use crate::app::token_and_client_file::Precedence;
use crate::machine::secret::hex;
use crate::store::{Db, settings};

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
    db: &Db,
    data_dir: &DataDir,
    fingerprint: &str,
    precedence: Precedence,
) -> anyhow::Result<()> {
    let in_force = db
        .tx("claim the authority", |tx| async move { settings::claim_ca_fingerprint(tx, fingerprint).await }.boxed())
        .await
        .context("store the authority")?;
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
    db.tx("set the authority", |tx| async move { settings::set_ca_fingerprint(tx, fingerprint).await }.boxed())
        .await
        .context("store the authority")
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The first and the last moment at which a certificate (DER) is valid; `None` if the bytes are not
/// a certificate.
pub(in crate::app) fn validity(certificate: &[u8]) -> Option<[DateTime<Utc>; 2]> {
    let (_, certificate, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, mut rest, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    if let Some((VERSION, _, after)) = element(rest) {
        rest = after;
    }
    // The serial number, the algorithm and the issuer come before the validity.
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (_, validity, _) = element(rest).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (tag, from, until) = element(validity)?;
    let from = time(tag, from)?;
    let (tag, until, _) = element(until)?;
    Some([from, time(tag, until)?])
}

/// The last moment at which a certificate is valid.
pub(super) fn not_after(certificate: &[u8]) -> Option<DateTime<Utc>> {
    validity(certificate).map(|[_, until]| until)
}

fn time(tag: u8, text: &[u8]) -> Option<DateTime<Utc>> {
    let text = std::str::from_utf8(text).ok()?;
    let text = match tag {
        // In RFC 5280, two-digit years mean 1950 to 2049.
        UTC_TIME => format!("{}{text}", if text.get(..2)? < "50" { "20" } else { "19" }),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    Some(NaiveDateTime::parse_from_str(&text, "%Y%m%d%H%M%SZ").ok()?.and_utc())
}

/// Splits DER data at its first element: the tag, its content, and the bytes after the element.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(*first) {
        short @ 0..0x80 => (short, rest),
        long => {
            let (bytes, rest) = rest.split_at_checked(long - 0x80)?;
            let length = bytes
                .iter()
                .try_fold(0_usize, |length, byte| length.checked_mul(0x100)?.checked_add(usize::from(*byte)))?;
            (length, rest)
        }
    };
    let (held, after) = rest.split_at_checked(length)?;
    Some((*tag, held, after))
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_second_scheduler_must_be_given_the_authority_of_the_first(pool: PgPool) {
        let db = Db::of(pool.clone());
        use Precedence::{DataDir as Own, Database as Shared};
        let base = tempfile::tempdir().unwrap();
        let first = DataDir::lock(&base.path().join("first")).unwrap();
        let second = DataDir::lock(&base.path().join("second")).unwrap();
        claim_authority(&db, &first, "aa", Shared).await.unwrap();
        let refused = claim_authority(&db, &second, "bb", Shared).await.unwrap_err().to_string();
        assert!(refused.contains("copy the folder tls"), "{refused}");
        claim_authority(&db, &second, "aa", Shared).await.unwrap();
        claim_authority(&db, &second, "bb", Own).await.unwrap();
        assert!(claim_authority(&db, &first, "aa", Shared).await.is_err());
    }

    fn made(until: (i32, u8, u8)) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until.0, until.1, until.2);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_validity_of_a_certificate_is_read_in_both_spellings() {
        for (until, read) in [((2027, 3, 1), "2027-03-01T00:00:00Z"), ((2051, 12, 31), "2051-12-31T00:00:00Z")] {
            // rcgen's certificates are valid from 1975 on.
            let from = "1975-01-01T00:00:00Z".parse().unwrap();
            assert_eq!(validity(&made(until)), Some([from, read.parse().unwrap()]));
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let whole = made((2027, 3, 1));
        for length in 0..whole.len() / 4 {
            assert_eq!(not_after(&whole[..length]), None);
        }
        for text in [
            &b""[..],
            b"\x30",
            b"\x30\x80",
            b"\x30\xff\xff",
            b"\x30\x88\xff\xff\xff\xff\xff\xff\xff\xff",
            b"-----BEGIN",
        ] {
            assert_eq!(not_after(text), None);
        }
    }
}
