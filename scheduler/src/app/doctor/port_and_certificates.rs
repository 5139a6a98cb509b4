//! Checks the listening address (whether it is free, and if not, which program uses it), the
//! certificate authority in the data directory, and the certificate that a scheduler serves.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use landfall_proto::foreign_server;
use landfall_proto::v1::agent_service_server::SERVICE_NAME;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::check_result::{CheckResult, in_time};
use super::data_dir_and_configuration::Holder;
use crate::app::address::local;
use crate::app::certificate_authority::{AUTHORITY_WARNED_BEFORE, CA, CA_KEY, NEW_AUTHORITY, validity};
use crate::app::server_certificate::{DOMAIN, RENEWED_BEFORE};

const PORT: &str = "port";

/// The program that listens at the address, or the reason why it is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PortFacts {
    Free,
    /// A Landfall scheduler that answers, and its certificate if it uses TLS.
    Scheduler(Option<CertificateDer<'static>>),
    /// A Landfall scheduler that refuses requests. Contains the reason.
    Refusing(String),
    /// A server whose certificate is not valid now. Contains the reason.
    OutdatedCertificate(String),
    /// A program other than a Landfall scheduler. Contains the reason for this conclusion.
    Stranger(String),
    /// A program that cannot be identified, because the file of the authority cannot be used.
    /// Contains the reason.
    Unidentified(String),
    /// This machine does not have the address.
    NotHere,
    /// This user may not listen on this port.
    Denied,
    Failed(String),
    /// No answer came in time.
    Hangs(CheckResult),
}

impl PortFacts {
    pub(super) const fn answers(&self) -> bool {
        matches!(self, Self::Scheduler(_))
    }
}

pub(super) async fn look_at_port(listen: SocketAddr, ca: &Path) -> PortFacts {
    match TcpListener::bind(listen).await {
        Ok(_) => PortFacts::Free,
        Err(error) => match error.kind() {
            ErrorKind::AddrInUse => in_time(PORT, ask(listen, ca)).await.unwrap_or_else(PortFacts::Hangs),
            ErrorKind::AddrNotAvailable => PortFacts::NotHere,
            ErrorKind::PermissionDenied => PortFacts::Denied,
            _ => PortFacts::Failed(error.to_string()),
        },
    }
}

async fn ask(listen: SocketAddr, ca: &Path) -> PortFacts {
    let address = local(listen);
    if listen.ip().is_loopback() {
        let Ok(endpoint) = Endpoint::from_shared(format!("http://{address}")) else {
            return PortFacts::Failed(format!("{address} is not an address to connect to"));
        };
        return match foreign_server::greeted(endpoint.uri()).await {
            Some(foreign) => PortFacts::Stranger(foreign.to_string()),
            None => health(endpoint, None).await,
        };
    }
    let leaf = match served(&address.ip().to_string(), address.port(), ca).await {
        Ok(leaf) => leaf,
        Err(Unserved::Outdated(why)) => return PortFacts::OutdatedCertificate(why),
        Err(Unserved::NoAuthority(why)) => return PortFacts::Unidentified(why),
        Err(Unserved::Stranger(why) | Unserved::Failed(why)) => return PortFacts::Stranger(why),
    };
    let pem = tokio::fs::read(ca).await.unwrap_or_default();
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)).domain_name(DOMAIN);
    match Endpoint::from_shared(format!("https://{address}")).and_then(|endpoint| endpoint.tls_config(tls)) {
        Ok(endpoint) => health(endpoint, Some(leaf)).await,
        Err(error) => PortFacts::Failed(error.to_string()),
    }
}

async fn health(endpoint: Endpoint, leaf: Option<CertificateDer<'static>>) -> PortFacts {
    let channel = match endpoint.connect().await {
        Ok(channel) => channel,
        Err(error) => return PortFacts::Stranger(format!("it does not speak gRPC ({error})")),
    };
    let request = HealthCheckRequest { service: SERVICE_NAME.to_owned() };
    match HealthClient::new(channel).check(request).await {
        Ok(_) => PortFacts::Scheduler(leaf),
        Err(status) => refused_call(&status),
    }
}

fn refused_call(status: &Status) -> PortFacts {
    match status.code() {
        Code::NotFound | Code::Unimplemented => PortFacts::Stranger("it speaks gRPC, but serves no agents".to_owned()),
        // tonic itself generated this status, because the connection broke.
        _ if std::error::Error::source(status).is_some() => {
            PortFacts::Stranger("it ended the connection without an answer".to_owned())
        }
        _ => PortFacts::Refusing(status.message().to_owned()),
    }
}

/// Judges the port. `holder` is the process that uses the data directory.
pub(super) fn judge_port(listen: SocketAddr, facts: &PortFacts, holder: Option<&Holder>) -> CheckResult {
    let another = "stop it, or choose another address with --listen";
    match (facts, holder) {
        (PortFacts::Free, None) => CheckResult::ok(PORT, format!("{listen} is free: no scheduler runs")),
        (PortFacts::Free, Some(Holder { pid, name })) => CheckResult::note(
            PORT,
            format!("nothing listens at {listen}, although process {pid} ({name}) uses the data directory"),
            "if a scheduler runs, give this command its options (--config, --listen); if it is starting, wait",
        ),
        (PortFacts::Scheduler(_), Some(_)) => CheckResult::ok(PORT, format!("the scheduler answers at {listen}")),
        (PortFacts::Scheduler(_), None) => CheckResult::wrong(
            PORT,
            format!("a scheduler answers at {listen}, but it does not use this data directory"),
            format!("give this command its --data-dir; to start another scheduler here, {another}"),
        ),
        (PortFacts::Refusing(why), _) => CheckResult::wrong(
            PORT,
            format!("the scheduler at {listen} refuses requests: {why}"),
            "check its database (the lines above), and its log",
        ),
        (PortFacts::OutdatedCertificate(why), _) => CheckResult::wrong(
            PORT,
            format!("the scheduler at {listen} cannot be reached: {why}"),
            "check the date of this machine's clock, then restart the scheduler, which makes a new certificate",
        ),
        (PortFacts::Stranger(why), _) => {
            CheckResult::wrong(PORT, format!("another program listens at {listen}: {why}"), another)
        }
        (PortFacts::Unidentified(why), _) => CheckResult::wrong(
            PORT,
            format!("a program listens at {listen}, but whether it is the scheduler is unknown: {why}"),
            "run this as the owner of the data directory, then see the check of the authority",
        ),
        (PortFacts::NotHere, _) => CheckResult::wrong(
            PORT,
            format!("this machine does not have the address {}", listen.ip()),
            "set listen to an address of this machine, or to 0.0.0.0 with --advertise HOST:PORT",
        ),
        (PortFacts::Denied, _) => CheckResult::wrong(
            PORT,
            format!("you may not listen at {listen}"),
            "choose a port of at least 1024 with --listen",
        ),
        (PortFacts::Failed(why), _) => {
            CheckResult::wrong(PORT, format!("{listen}: {why}"), "choose another address with --listen")
        }
        (PortFacts::Hangs(result), Some(Holder { pid, name })) => CheckResult::wrong(
            PORT,
            format!("process {pid} ({name}) listens at {listen}, or another program does: {}", result.text),
            "if the scheduler is starting, wait; otherwise read its log",
        ),
        (PortFacts::Hangs(result), None) => CheckResult {
            text: format!("a program listens at {listen}: {}", result.text),
            remedy: Some(another.to_owned()),
            ..result.clone()
        },
    }
}

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
pub(super) fn judge_certificates(
    data_dir: &Path,
    dialled: Option<&str>,
    port: &PortFacts,
    now: DateTime<Utc>,
) -> Vec<CheckResult> {
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

/// Why no valid certificate was served.
#[derive(Debug)]
enum Unserved {
    /// The certificate is not valid now. Contains the reason.
    Outdated(String),
    /// The server is not a scheduler that uses this data directory. Contains the reason for this conclusion.
    Stranger(String),
    /// The file of the authority cannot be used, so the server was not asked. Contains the reason.
    NoAuthority(String),
    Failed(String),
}

/// Connects to a server over TLS. Returns the server's certificate if the authority in the file
/// `ca` signed it.
async fn served(host: &str, port: u16, ca: &Path) -> Result<CertificateDer<'static>, Unserved> {
    let failed = |what: String| Unserved::Failed(what);
    let ca_file = ca.display();
    let pem = tokio::fs::read(ca).await.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Unserved::Stranger(format!("no scheduler has made {ca_file} yet")),
        _ => Unserved::NoAuthority(format!("read {ca_file}: {error}")),
    })?;
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(&pem);
    let trusted = authority.ok().is_some_and(|authority| roots.add(authority).is_ok());
    if !trusted {
        return Err(Unserved::NoAuthority(format!("{ca_file} contains no certificate")));
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(DOMAIN).expect("a valid name");
    let stream = TcpStream::connect((host, port)).await.map_err(|error| failed(error.to_string()))?;
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let stream = connected.map_err(|error| refused_connection(&error))?;
    let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
    leaf.ok_or_else(|| failed("it sent no certificate".to_owned()))
}

fn refused_connection(error: &io::Error) -> Unserved {
    match foreign_server::of_error(error) {
        Some(foreign) if foreign.is_outdated() => Unserved::Outdated(foreign.to_string()),
        Some(foreign) => Unserved::Stranger(foreign.to_string()),
        None => Unserved::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_util::sync::CancellationToken;
    use tonic::service::Routes;
    use tonic::transport::Server;

    use super::*;
    use crate::app::doctor::State;
    use crate::app::server_certificate::{install_crypto, prepare};
    use crate::config::PortConfig;
    use crate::grpc::listen;
    use crate::grpc::port::Port;
    use crate::machine::clock::now;

    const NO_CA: &str = "/nonexistent/ca.pem";

    async fn found(listen: SocketAddr) -> (PortFacts, CheckResult) {
        let facts = look_at_port(listen, Path::new(NO_CA)).await;
        let judged = judge_port(listen, &facts, None);
        (facts, judged)
    }

    #[tokio::test]
    async fn a_port_held_by_another_program_is_told_from_a_free_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listen = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                // If bytes were left unread, closing the socket would reset the connection before
                // the client reads the answer.
                drop(stream.read(&mut [0; 64]).await);
                stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            }
        });
        let (facts, judged) = found(listen).await;
        assert!(matches!(facts, PortFacts::Stranger(_)), "{facts:?}");
        assert!(judged.state == State::Wrong && judged.text.contains("it does not speak gRPC"), "{judged:?}");
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled());
        let (facts, judged) = found(listen).await;
        assert_eq!((facts, judged.state), (PortFacts::Free, State::Ok));
    }

    #[tokio::test]
    async fn a_grpc_server_of_others_is_no_scheduler() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listen = listener.local_addr().unwrap();
        let (_, health) = tonic_health::server::health_reporter();
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        tokio::spawn(Server::builder().add_service(health).serve_with_incoming(incoming));
        let (facts, _) = found(listen).await;
        assert_eq!(facts, PortFacts::Stranger("it speaks gRPC, but serves no agents".to_owned()));
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_named() {
        // No machine has an address of TEST-NET-1 (RFC 5737).
        let (facts, judged) = found((Ipv4Addr::new(192, 0, 2, 1), 0).into()).await;
        assert_eq!((facts, judged.state), (PortFacts::NotHere, State::Wrong));
    }

    #[test]
    fn who_listens_is_judged_together_with_who_uses_the_data_directory() {
        let listen = "127.0.0.1:7171".parse().unwrap();
        let holder = Holder { pid: 7, name: "landfall".to_owned() };
        for (facts, holder, state, said) in [
            (PortFacts::Free, None, State::Ok, "free"),
            (PortFacts::Free, Some(&holder), State::Note, "process 7 (landfall)"),
            (PortFacts::Scheduler(None), Some(&holder), State::Ok, "answers at"),
            (PortFacts::Scheduler(None), None, State::Wrong, "does not use this data directory"),
            (PortFacts::Refusing("away".to_owned()), Some(&holder), State::Wrong, "refuses requests: away"),
            (PortFacts::OutdatedCertificate("expired".to_owned()), Some(&holder), State::Wrong, "expired"),
            (PortFacts::Unidentified("read ca.pem".to_owned()), None, State::Wrong, "unknown: read ca.pem"),
            (PortFacts::Denied, None, State::Wrong, "may not listen"),
        ] {
            let judged = judge_port(listen, &facts, holder);
            assert!(judged.state == state && judged.text.contains(said), "{judged:?}");
        }
    }

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
        prepare(base.path(), &[], day("2026-11-21")).unwrap();
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
        prepare(other.path(), &[], day("2026-11-21")).unwrap();
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
        install_crypto();
        let prepared = prepare(dir, &["127.0.0.1".to_owned()], day).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (_, health) = tonic_health::server::health_reporter();
        let (routes, port_limits) = (Routes::new(health).into_axum_router(), Port::new(PortConfig::default()));
        tokio::spawn(listen(listener, Some(prepared.config), routes, Arc::new(port_limits), CancellationToken::new()));
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
        let stranger = prepare(other.path(), &[], now).unwrap();
        let refused = served("127.0.0.1", port, &stranger.ca_path).await.unwrap_err();
        assert!(matches!(&refused, Unserved::Stranger(why) if why.contains("another authority")), "{refused:?}");
    }

    #[tokio::test]
    async fn an_authority_that_cannot_be_read_says_nothing_about_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let of = async |ca: &Path| served("127.0.0.1", 1, ca).await.unwrap_err();
        assert!(matches!(of(folder.path()).await, Unserved::NoAuthority(_)));
        assert!(matches!(of(&folder.path().join("ca.pem")).await, Unserved::Stranger(_)));
        std::fs::write(folder.path().join("ca.pem"), "no certificate").unwrap();
        assert!(matches!(of(&folder.path().join("ca.pem")).await, Unserved::NoAuthority(_)));
    }
}
