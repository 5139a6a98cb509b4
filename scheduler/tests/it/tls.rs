//! Tests the scheduler's own certificate authority on real connections: only clients that trust the
//! authority can connect, and the chain contains the certificate whose fingerprint agents pin.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use landfall_scheduler::app::certificate_authority::fingerprint;
use landfall_scheduler::app::server_certificate::{DOMAIN, Leaf, install_crypto, prepare};
use landfall_scheduler::config::PortConfig;
use landfall_scheduler::grpc::listen;
use landfall_scheduler::grpc::port::Port;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// The time of this machine, with which clients check certificates.
fn today() -> DateTime<Utc> {
    std::fs::metadata("/proc/self").unwrap().modified().unwrap().into()
}

/// Runs the health service over TLS with a certificate issued on `day`; returns the URL, the
/// authority's fingerprint and the server's certificate.
async fn serve_since(dir: &Path, day: DateTime<Utc>) -> (String, String, Arc<Leaf>) {
    install_crypto();
    let prepared = prepare(dir, &["127.0.0.1".to_owned()], day).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (_, health) = tonic_health::server::health_reporter();
    let (routes, port) = (Routes::new(health).into_axum_router(), Arc::new(Port::new(PortConfig::default())));
    tokio::spawn(listen(listener, Some(prepared.config), routes, port, CancellationToken::new()));
    (url, prepared.ca_fingerprint, prepared.leaf)
}

async fn serve(dir: &Path) -> (String, String) {
    let (url, fingerprint, _) = serve_since(dir, today()).await;
    (url, fingerprint)
}

async fn ask(url: &str, ca: &Path, domain: &str) -> Result<(), tonic::transport::Error> {
    check(&mut connect(url, ca, domain).await?).await;
    Ok(())
}

async fn connect(url: &str, ca: &Path, domain: &str) -> Result<HealthClient<Channel>, tonic::transport::Error> {
    let pem = std::fs::read(ca).unwrap();
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)).domain_name(domain);
    let channel = Endpoint::from_shared(url.to_owned()).unwrap().tls_config(tls).unwrap().connect().await?;
    Ok(HealthClient::new(channel))
}

async fn check(client: &mut HealthClient<Channel>) {
    client.check(HealthCheckRequest::default()).await.unwrap();
}

#[tokio::test]
async fn a_certificate_that_ends_soon_is_issued_anew_for_new_connections_while_old_ones_live_on() {
    let dir = tempfile::tempdir().unwrap();
    let (url, _, leaf) = serve_since(dir.path(), today() - TimeDelta::days(300)).await;
    let ca = dir.path().join("tls/ca.pem");
    let mut old = connect(&url, &ca, DOMAIN).await.unwrap();
    let address = url.strip_prefix("https://").unwrap();
    let first = chain(address, &ca).await;
    let stop = CancellationToken::new();
    let keeping = tokio::spawn(leaf.keep(today, Duration::from_millis(10), stop.clone()));
    let anew = async {
        loop {
            let served = chain(address, &ca).await;
            if served[0] != first[0] {
                return served;
            }
        }
    };
    let anew = tokio::time::timeout(Duration::from_secs(30), anew).await.unwrap();
    assert_eq!(anew[1], first[1], "of the same authority");
    ask(&url, &ca, DOMAIN).await.unwrap();
    check(&mut old).await;
    assert_eq!(chain(address, &ca).await[0], anew[0], "once");
    stop.cancel();
    keeping.await.unwrap();
}

#[tokio::test]
async fn only_who_trusts_this_authority_under_this_name_is_answered() {
    let own = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let (url, shown) = serve(own.path()).await;
    let stranger = prepare(other.path(), &[], today()).unwrap();
    ask(&url, &own.path().join("tls/ca.pem"), DOMAIN).await.unwrap();
    assert!(ask(&url, &own.path().join("tls/ca.pem"), "elsewhere.example.org").await.is_err());
    assert!(ask(&url, &stranger.ca_path, DOMAIN).await.is_err());
    let pem = std::fs::read_to_string(own.path().join("tls/ca.pem")).unwrap();
    assert_eq!(fingerprint(&pem), Some(shown));
}

#[tokio::test]
async fn the_chain_holds_the_certificate_whose_fingerprint_is_pinned() {
    let own = tempfile::tempdir().unwrap();
    let (url, shown) = serve(own.path()).await;
    let seen = chain(url.strip_prefix("https://").unwrap(), &own.path().join("tls/ca.pem")).await;
    assert_eq!(seen.len(), 2);
    let last: String = {
        use sha2::Digest;
        sha2::Sha256::digest(&seen[1]).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    assert_eq!(last, shown);
}

#[tokio::test]
async fn who_trusts_the_first_scheduler_trusts_one_that_was_given_its_tls_folder() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, fingerprint) = serve(first.path()).await;
    std::fs::create_dir(second.path().join("tls")).unwrap();
    for file in ["ca.pem", "ca.key", "server.pem", "server.key"] {
        std::fs::copy(first.path().join("tls").join(file), second.path().join("tls").join(file)).unwrap();
    }
    let (url, same) = serve(second.path()).await;
    assert_eq!(same, fingerprint);
    ask(&url, &first.path().join("tls/ca.pem"), DOMAIN).await.unwrap();
}

/// The certificates that a server sends (DER), its own first. The handshake uses blocking I/O.
async fn chain(address: &str, ca: &Path) -> Vec<Vec<u8>> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};

    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let mut config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(DOMAIN).unwrap();
    let mut connection = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
    let address = address.to_owned();
    tokio::task::spawn_blocking(move || {
        let mut socket = std::net::TcpStream::connect(address).unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).unwrap();
        }
        connection.peer_certificates().unwrap().iter().map(|certificate| certificate.to_vec()).collect()
    })
    .await
    .unwrap()
}
