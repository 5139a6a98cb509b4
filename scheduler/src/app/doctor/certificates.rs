//! Checks the certificate authority in the data directory, and the certificate that a scheduler
//! serves.

use std::io;
use std::path::Path;

use chrono::{DateTime, TimeDelta, Utc};
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;

use super::check_result::CheckResult;
use super::port::PortFacts;
use super::served_certificate::{Unserved, served};
use super::time_limit::in_time;
use crate::app::tls::{AUTHORITY_WARNED_BEFORE, CA, CA_KEY, DOMAIN, NEW_AUTHORITY, RENEWED_BEFORE, validity};

const AUTHORITY: &str = "authority";
const CERTIFICATE: &str = "certificate";
/// A renewal that is overdue by more than this time counts as failed. A running scheduler checks
/// once an hour whether a renewal is needed.
const RENEWED_WITHIN: TimeDelta = TimeDelta::days(1);

/// Checks the certificate of a scheduler on another machine; `None` if the scheduler cannot be
/// reached.
pub(crate) async fn of_scheduler(host: &str, port: u16, ca: &Path, now: DateTime<Utc>) -> Option<CheckResult> {
    match in_time(CERTIFICATE, served(host, port, ca)).await {
        Ok(Ok(leaf)) => Some(judge_served(&leaf, host, now)),
        Ok(Err(Unserved::Outdated(why))) => Some(outdated(&why)),
        Ok(Err(Unserved::Stranger(_) | Unserved::NoAuthority(_) | Unserved::Failed(_))) | Err(_) => None,
    }
}

/// Judges the authority and the certificate. `dialled` is the host to which agents connect; `None`
/// if the scheduler uses no TLS.
pub(super) fn judge(data_dir: &Path, dialled: Option<&str>, port: &PortFacts, now: DateTime<Utc>) -> Vec<CheckResult> {
    let Some(dialled) = dialled else {
        return vec![CheckResult::skip(CERTIFICATE, "none is used: the scheduler listens on loopback, in plaintext")];
    };
    let tls = data_dir.join("tls");
    let mut results = vec![judge_authority(&tls, &authority(&tls), now)];
    match port {
        PortFacts::Scheduler(Some(leaf)) => results.push(judge_served(leaf, dialled, now)),
        PortFacts::OutdatedCertificate(why) => results.push(outdated(why)),
        _ => results.push(CheckResult::skip(CERTIFICATE, format!("each start issues one, for {dialled}"))),
    }
    results
}

fn outdated(why: &str) -> CheckResult {
    CheckResult::wrong(
        CERTIFICATE,
        why,
        "check the clocks of both machines; a restart of the scheduler issues a new one",
    )
}

/// The authority in the folder `tls`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AuthorityFacts {
    Missing,
    /// The certificate or its key cannot be used.
    Unusable(String),
    /// The first and the last moment at which the authority is valid.
    Valid([DateTime<Utc>; 2]),
}

fn authority(tls: &Path) -> AuthorityFacts {
    let (ca, key) = (tls.join(CA), tls.join(CA_KEY));
    let unusable = |what: String| AuthorityFacts::Unusable(what);
    let pem = match std::fs::read(&ca) {
        Ok(pem) => pem,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return AuthorityFacts::Missing,
        Err(error) => return unusable(format!("read {}: {error}", ca.display())),
    };
    let Ok(certificate) = CertificateDer::from_pem_slice(&pem) else {
        return unusable(format!("{} contains no certificate", ca.display()));
    };
    let Some(validity) = validity(&certificate) else {
        return unusable(format!("{} contains no certificate", ca.display()));
    };
    let key_pem = match std::fs::read(&key) {
        Ok(pem) => pem,
        Err(error) => return unusable(format!("read {}: {error}", key.display())),
    };
    let Ok(private) = PrivateKeyDer::from_pem_slice(&key_pem) else {
        return unusable(format!("{} contains no key", key.display()));
    };
    match CertifiedKey::from_der(vec![certificate], private, &rustls::crypto::ring::default_provider()) {
        Ok(_) => AuthorityFacts::Valid(validity),
        Err(_) => unusable(format!("{} is not the key of {}", key.display(), ca.display())),
    }
}

fn judge_authority(tls: &Path, facts: &AuthorityFacts, now: DateTime<Utc>) -> CheckResult {
    let tls = tls.display();
    let anew = format!("move {tls} away, {NEW_AUTHORITY}");
    let day = |time: &DateTime<Utc>| time.format("%Y-%m-%d");
    match facts {
        AuthorityFacts::Missing => CheckResult::ok(AUTHORITY, format!("none yet; the first start makes one in {tls}")),
        AuthorityFacts::Unusable(why) => CheckResult::wrong(
            AUTHORITY,
            format!("no certificate can be issued: {why}"),
            format!(
                "run this as the owner of the data directory; if the file is lost, restore it from a backup, or {anew}"
            ),
        ),
        AuthorityFacts::Valid([from, _]) if *from > now => CheckResult::wrong(
            AUTHORITY,
            format!("it is valid only from {}", day(from)),
            "set this machine's clock, which is probably slow",
        ),
        AuthorityFacts::Valid([_, until]) if *until < now => {
            CheckResult::wrong(AUTHORITY, format!("it expired on {}: no agent can connect", day(until)), anew)
        }
        AuthorityFacts::Valid([_, until]) if *until - now < AUTHORITY_WARNED_BEFORE => {
            let text = format!("it expires on {}, {}", day(until), remaining(*until - now));
            CheckResult::note(AUTHORITY, text, format!("before that day {anew}"))
        }
        AuthorityFacts::Valid([_, until]) => {
            CheckResult::ok(AUTHORITY, format!("valid until {}, {}", day(until), remaining(*until - now)))
        }
    }
}

/// Judges the certificate that a running scheduler serves.
fn judge_served(leaf: &CertificateDer<'_>, dialled: &str, now: DateTime<Utc>) -> CheckResult {
    let Some([_, until]) = validity(leaf) else {
        return CheckResult::wrong(CERTIFICATE, "it cannot be read", "restart the scheduler, which issues a new one");
    };
    let text = format!("valid until {}, {}", until.format("%Y-%m-%d"), remaining(until - now));
    if until - now < RENEWED_BEFORE - RENEWED_WITHIN {
        return CheckResult::wrong(
            CERTIFICATE,
            format!("{text}; it should have been renewed"),
            "read the scheduler's log: usually the disk is full, or ca.key in the folder tls cannot be read",
        );
    }
    let named = ServerName::try_from(dialled).ok().zip(ParsedCertificate::try_from(leaf).ok());
    match named.is_some_and(|(name, leaf)| verify_server_name(&leaf, &name).is_ok()) {
        true => CheckResult::ok(CERTIFICATE, format!("{text}; for {dialled}")),
        false => CheckResult::note(
            CERTIFICATE,
            format!("{text}; it does not contain the name {dialled} (agents and commands verify only {DOMAIN})"),
            format!("restart the scheduler with --advertise {dialled}:PORT"),
        ),
    }
}

fn remaining(time: TimeDelta) -> String {
    format!("in {} days", time.num_days())
}

#[cfg(test)]
mod tests {
    use crate::machine::clock::now;
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::transport::Server;

    use super::*;
    use crate::app::doctor::State;
    use crate::app::tls;
    use crate::grpc::over_tls;

    fn day(text: &str) -> DateTime<Utc> {
        format!("{text}T12:00:00Z").parse().unwrap()
    }

    fn judged(tls: &Path, now: &str) -> CheckResult {
        judge_authority(tls, &authority(tls), day(now))
    }

    #[test]
    fn an_authority_is_judged_by_its_validity_and_its_key() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("tls");
        assert_eq!(authority(&folder), AuthorityFacts::Missing);
        assert_eq!(judged(&folder, "2026-11-21").state, State::Ok);
        tls::prepare(base.path(), &[], day("2026-11-21")).unwrap();
        for (now, state, said) in [
            ("2026-11-21", State::Ok, "valid until 2036-11-21, in 3652 days"),
            ("2036-11-01", State::Note, "expires on 2036-11-21, in 19 days"),
            ("2036-11-22", State::Wrong, "expired on 2036-11-21: no agent can connect"),
            ("2020-01-01", State::Wrong, "valid only from 2026-11-20"),
        ] {
            let judged = judged(&folder, now);
            assert!(judged.state == state && judged.text.contains(said), "{judged:?}");
        }
        let other = tempfile::tempdir().unwrap();
        tls::prepare(other.path(), &[], day("2026-11-21")).unwrap();
        std::fs::copy(other.path().join("tls/ca.key"), folder.join("ca.key")).unwrap();
        let mixed = judged(&folder, "2026-11-21");
        assert!(mixed.state == State::Wrong && mixed.text.contains("ca.key is not the key of"), "{mixed:?}");
        std::fs::remove_file(folder.join("ca.key")).unwrap();
        assert!(judged(&folder, "2026-11-21").text.contains("ca.key: No such file"));
        std::fs::write(folder.join("ca.pem"), "rubbish").unwrap();
        assert!(judged(&folder, "2026-11-21").text.contains("ca.pem contains no certificate"));
    }

    /// Serves a certificate issued on `day`. Returns the port.
    async fn serve(dir: &Path, day: DateTime<Utc>) -> u16 {
        tls::install_crypto();
        let prepared = tls::prepare(dir, &["127.0.0.1".to_owned()], day).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (_, health) = tonic_health::server::health_reporter();
        let incoming = over_tls(TcpListenerStream::new(listener), prepared.config);
        tokio::spawn(Server::builder().add_service(health).serve_with_incoming(incoming));
        port
    }

    #[tokio::test]
    async fn a_served_certificate_is_judged_by_its_validity_and_its_names() {
        let (base, now) = (tempfile::tempdir().unwrap(), now());
        let ca = base.path().join("tls/ca.pem");
        for (issued_ago, state, said) in [
            (0, State::Ok, "; for 127.0.0.1"),
            (300, State::Wrong, "it should have been renewed"),
            (400, State::Wrong, "its certificate has expired"),
            (-30, State::Wrong, "its certificate is not valid yet"),
        ] {
            let port = serve(base.path(), now - TimeDelta::days(issued_ago)).await;
            let judged = of_scheduler("127.0.0.1", port, &ca, now).await.unwrap();
            assert!(judged.state == state && judged.text.contains(said), "{judged:?}");
        }
        let port = serve(base.path(), now).await;
        let leaf = served("127.0.0.1", port, &ca).await.unwrap();
        let elsewhere = judge_served(&leaf, "scheduler.example.org", now);
        assert!(elsewhere.state == State::Note && elsewhere.text.contains("not contain the name"), "{elsewhere:?}");
        let other = tempfile::tempdir().unwrap();
        let stranger = tls::prepare(other.path(), &[], now).unwrap();
        let refused = served("127.0.0.1", port, &stranger.ca_path).await.unwrap_err();
        assert!(matches!(&refused, Unserved::Stranger(why) if why.contains("another authority")), "{refused:?}");
    }
}
