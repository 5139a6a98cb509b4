//! Checks the listening address: whether it is free, and if not, which program uses it.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;

use landfall_proto::foreign_server;
use landfall_proto::v1::agent_service_server::SERVICE_NAME;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::check_result::CheckResult;
use super::data_dir::Holder;
use super::served_certificate::{Unserved, served};
use super::time_limit::in_time;
use crate::app::address::local;
use crate::app::tls::DOMAIN;

const CHECK: &str = "port";

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

pub(super) async fn look(listen: SocketAddr, ca: &Path) -> PortFacts {
    match TcpListener::bind(listen).await {
        Ok(_) => PortFacts::Free,
        Err(error) => match error.kind() {
            ErrorKind::AddrInUse => in_time(CHECK, ask(listen, ca)).await.unwrap_or_else(PortFacts::Hangs),
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
        Err(status) => refused(&status),
    }
}

fn refused(status: &Status) -> PortFacts {
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
pub(super) fn judge(listen: SocketAddr, facts: &PortFacts, holder: Option<&Holder>) -> CheckResult {
    let another = "stop it, or choose another address with --listen";
    match (facts, holder) {
        (PortFacts::Free, None) => CheckResult::ok(CHECK, format!("{listen} is free: no scheduler runs")),
        (PortFacts::Free, Some(Holder { pid, name })) => CheckResult::note(
            CHECK,
            format!("nothing listens at {listen}, although process {pid} ({name}) uses the data directory"),
            "if a scheduler runs, give this command its options (--config, --listen); if it is starting, wait",
        ),
        (PortFacts::Scheduler(_), Some(_)) => CheckResult::ok(CHECK, format!("the scheduler answers at {listen}")),
        (PortFacts::Scheduler(_), None) => CheckResult::wrong(
            CHECK,
            format!("a scheduler answers at {listen}, but it does not use this data directory"),
            format!("give this command its --data-dir; to start another scheduler here, {another}"),
        ),
        (PortFacts::Refusing(why), _) => CheckResult::wrong(
            CHECK,
            format!("the scheduler at {listen} refuses requests: {why}"),
            "check its database (the lines above), and its log",
        ),
        (PortFacts::OutdatedCertificate(why), _) => CheckResult::wrong(
            CHECK,
            format!("the scheduler at {listen} cannot be reached: {why}"),
            "check the date of this machine's clock, then restart the scheduler, which makes a new certificate",
        ),
        (PortFacts::Stranger(why), _) => {
            CheckResult::wrong(CHECK, format!("another program listens at {listen}: {why}"), another)
        }
        (PortFacts::Unidentified(why), _) => CheckResult::wrong(
            CHECK,
            format!("a program listens at {listen}, but whether it is the scheduler is unknown: {why}"),
            "run this as the owner of the data directory, then see the check of the authority",
        ),
        (PortFacts::NotHere, _) => CheckResult::wrong(
            CHECK,
            format!("this machine does not have the address {}", listen.ip()),
            "set listen to an address of this machine, or to 0.0.0.0 with --advertise HOST:PORT",
        ),
        (PortFacts::Denied, _) => CheckResult::wrong(
            CHECK,
            format!("you may not listen at {listen}"),
            "choose a port of at least 1024 with --listen",
        ),
        (PortFacts::Failed(why), _) => {
            CheckResult::wrong(CHECK, format!("{listen}: {why}"), "choose another address with --listen")
        }
        (PortFacts::Hangs(result), Some(Holder { pid, name })) => CheckResult::wrong(
            CHECK,
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tonic::transport::Server;

    use super::*;
    use crate::app::doctor::State;

    const NO_CA: &str = "/nonexistent/ca.pem";

    async fn found(listen: SocketAddr) -> (PortFacts, CheckResult) {
        let facts = look(listen, Path::new(NO_CA)).await;
        let judged = judge(listen, &facts, None);
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
            let judged = judge(listen, &facts, holder);
            assert!(judged.state == state && judged.text.contains(said), "{judged:?}");
        }
    }
}
