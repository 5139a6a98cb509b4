//! A small HTTP/1.1 server for tests, which answers late, not at all, or wrongly, as each test wants.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, SOA};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
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

/// A name server that answers as each test wants, and counts what it is asked.
pub(crate) struct TestNames {
    pub(crate) addr: SocketAddr,
    asked: Arc<Mutex<HashMap<String, usize>>>,
    questions: Arc<AtomicUsize>,
}

/// What a name server says of a name.
pub(crate) enum Named {
    /// It has these addresses, for so many seconds.
    At(Vec<IpAddr>, u32),
    /// It does not exist, for so many seconds.
    Gone(u32),
    /// Nothing.
    Silent,
}

impl TestNames {
    /// One that knows a few names, and their IPv4 addresses only.
    pub(crate) async fn start(names: &'static [(&'static str, Ipv4Addr)]) -> Self {
        Self::answering(|name, _| {
            let known = names.iter().filter(|(known, _)| *known == name).map(|(_, addr)| IpAddr::V4(*addr));
            let known: Vec<IpAddr> = known.collect();
            if known.is_empty() { Named::Gone(60) } else { Named::At(known, 60) }
        })
        .await
    }

    /// One that answers as `answer` says, which is told the name and how often its IPv4 addresses were asked for before.
    pub(crate) async fn answering(answer: impl Fn(&str, usize) -> Named + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let names = Self { addr: socket.local_addr().unwrap(), asked: Arc::default(), questions: Arc::default() };
        let (asked, questions) = (Arc::clone(&names.asked), Arc::clone(&names.questions));
        tokio::spawn(async move {
            let mut query = [0; 512];
            loop {
                let (length, peer) = socket.recv_from(&mut query).await.unwrap();
                let query = Message::from_vec(&query[..length]).unwrap();
                questions.fetch_add(1, Ordering::SeqCst);
                let name = query.queries[0].name().to_ascii().trim_end_matches('.').to_lowercase();
                let before = {
                    let mut asked = asked.lock().unwrap();
                    let times = asked.entry(name.clone()).or_default();
                    *times += usize::from(query.queries[0].query_type() == RecordType::A);
                    times.saturating_sub(1)
                };
                if let Some(answer) = dns_answer(&query, answer(&name, before)) {
                    socket.send_to(&answer, peer).await.unwrap();
                }
            }
        });
        names
    }

    /// Questions of any kind, for any name.
    pub(crate) fn questions(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }

    /// How often the IPv4 addresses of a name were asked for.
    pub(crate) fn asked(&self, name: &str) -> usize {
        self.asked.lock().unwrap().get(name).copied().unwrap_or_default()
    }
}

fn dns_answer(query: &Message, named: Named) -> Option<Vec<u8>> {
    let question = query.queries[0].clone();
    let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
    answer.metadata.recursion_available = true;
    let record = |ttl, data| Record::from_rdata(question.name().clone(), ttl, data);
    match named {
        Named::Silent => return None,
        Named::Gone(ttl) => {
            answer.metadata.response_code = ResponseCode::NXDomain;
            let soa = SOA::new(Name::root(), Name::root(), 1, 60, 60, 60, ttl);
            answer.add_authority(record(ttl, RData::SOA(soa)));
        }
        Named::At(addresses, ttl) => {
            for addr in addresses {
                match (addr, question.query_type()) {
                    (IpAddr::V4(addr), RecordType::A) => answer.add_answer(record(ttl, RData::A(A(addr)))),
                    (IpAddr::V6(addr), RecordType::AAAA) => answer.add_answer(record(ttl, RData::AAAA(AAAA(addr)))),
                    _ => continue,
                };
            }
        }
    }
    answer.add_query(question);
    Some(answer.to_vec().unwrap())
}

/// A self-signed certificate for `127.0.0.1`.
pub(crate) struct TestCertificate {
    pub(crate) pem: String,
    config: Arc<rustls::ServerConfig>,
}

impl TestCertificate {
    pub(crate) fn new() -> Self {
        Self::made(|_| {})
    }

    /// One that was valid in the past.
    pub(crate) fn expired() -> Self {
        Self::made(|params| {
            params.not_before = rcgen::date_time_ymd(2019, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        })
    }

    /// What a server needs that offers these protocols.
    pub(crate) fn acceptor(&self, protocols: &[&str]) -> tokio_rustls::TlsAcceptor {
        let mut config = (*self.config).clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config).into()
    }

    fn made(change: impl FnOnce(&mut CertificateParams)) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        change(&mut params);
        let certificate = params.self_signed(&key).unwrap();
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
