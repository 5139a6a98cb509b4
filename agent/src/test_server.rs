//! A small HTTP/1.1 server for tests, which answers late, not at all, or wrongly, as each test wants.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

/// One request as the server saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// The connection, from 0.
    pub(crate) connection: usize,
    /// The request on it, from 0.
    pub(crate) request: usize,
    /// The request line and headers.
    pub(crate) head: String,
}

impl Seen {
    pub(crate) fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }
}

/// What to do with a request.
pub(crate) enum Reply {
    /// After a delay, these bytes.
    After(Duration, String),
    /// These bytes at once, then the end of the connection.
    AndClose(String),
    /// The end of the connection.
    Close,
    /// Nothing, ever.
    Never,
}

/// A running server; it ends with the test.
pub(crate) struct TestServer {
    pub(crate) addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// A name server that knows a few names, and their IPv4 addresses only.
pub(crate) struct TestNames {
    pub(crate) addr: SocketAddr,
}

impl TestNames {
    pub(crate) async fn start(names: &'static [(&'static str, Ipv4Addr)]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addr = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut query = [0; 512];
            loop {
                let (length, peer) = socket.recv_from(&mut query).await.unwrap();
                socket.send_to(&dns_answer(&query[..length], names), peer).await.unwrap();
            }
        });
        Self { addr }
    }
}

/// Answers one question (RFC 1035, 4.1): the header, the question as it came, and the A records of the name.
fn dns_answer(query: &[u8], names: &[(&str, Ipv4Addr)]) -> Vec<u8> {
    let mut labels = Vec::new();
    let mut at = 12;
    while query[at] != 0 {
        let length = usize::from(query[at]);
        labels.push(String::from_utf8(query[at + 1..=at + length].to_vec()).unwrap().to_lowercase());
        at += length + 1;
    }
    let question = &query[12..at + 5];
    let wants_a = query[at + 1..at + 3] == [0, 1];
    let known: Vec<Ipv4Addr> = names.iter().filter(|(name, _)| *name == labels.join(".")).map(|(_, a)| *a).collect();
    let code = if known.is_empty() { 3 } else { 0 };
    let answers = if wants_a { u8::try_from(known.len()).unwrap() } else { 0 };
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, answers, 0, 0, 0, 0]);
    answer.extend(question);
    for address in known.iter().filter(|_| wants_a) {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(address.octets());
    }
    answer
}

/// A self-signed certificate for `127.0.0.1`.
pub(crate) struct TestCertificate {
    pub(crate) pem: String,
    config: Arc<rustls::ServerConfig>,
}

impl TestCertificate {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .unwrap();
        Self { pem: certificate.pem(), config: Arc::new(config) }
    }
}

pub(crate) fn status(line: &str) -> String {
    format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n")
}

pub(crate) fn redirect(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n")
}

impl TestServer {
    pub(crate) async fn plain(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(Ipv4Addr::LOCALHOST, None, answer).await
    }

    pub(crate) async fn plain_at(address: Ipv4Addr, answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(address, None, answer).await
    }

    pub(crate) async fn tls(
        certificate: &TestCertificate,
        answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start(Ipv4Addr::LOCALHOST, Some(Arc::clone(&certificate.config)), answer).await
    }

    async fn start(
        address: Ipv4Addr,
        tls: Option<Arc<rustls::ServerConfig>>,
        answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&seen), Arc::new(answer));
        tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (log, answer, tls) = (Arc::clone(&log), Arc::clone(&answer), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, connection, &log, &*answer).await,
                        Some(tls) => {
                            if let Ok(stream) = tokio_rustls::TlsAcceptor::from(tls).accept(stream).await {
                                serve(stream, connection, &log, &*answer).await;
                            }
                        }
                    }
                });
            }
        });
        Self { addr, seen }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    connection: usize,
    log: &Mutex<Vec<Seen>>,
    answer: &(dyn Fn(&Seen) -> Reply + Send + Sync),
) {
    for request in 0.. {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        let seen = Seen { connection, request, head: String::from_utf8(head).unwrap() };
        log.lock().unwrap().push(seen.clone());
        match answer(&seen) {
            Reply::After(delay, text) => {
                tokio::time::sleep(delay).await;
                if stream.write_all(text.as_bytes()).await.is_err() {
                    return;
                }
            }
            Reply::AndClose(text) => {
                drop(stream.write_all(text.as_bytes()).await);
                drop(stream.shutdown().await);
                return;
            }
            Reply::Close => return,
            Reply::Never => std::future::pending().await,
        }
    }
}
