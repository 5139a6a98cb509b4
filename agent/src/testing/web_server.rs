//! A web server on loopback, which records the requests: its replies, their encodings, and its
//! certificates.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::StatusCode;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::name_server::context;
use crate::net::request_context::{RequestContext, tls_config};

/// A request as the server received it.
#[derive(Debug, Clone)]
pub(crate) struct SeenRequest {
    pub(crate) at: Instant,
    /// The number of the connection, counted from 0.
    pub(crate) connection: usize,
    /// The number of the request on its connection, counted from 0.
    pub(crate) request: usize,
    /// The request line and headers.
    pub(crate) head: String,
}

impl SeenRequest {
    pub(crate) fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    pub(crate) fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// The value of a header; empty if it is absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    }
}

/// A function that answers requests.
type Answer = dyn Fn(&SeenRequest) -> Reply + Send + Sync;

/// A running web server, which stops when it is dropped.
pub(crate) struct TestServer {
    pub(crate) addr: SocketAddr,
    log: Arc<RequestLog>,
}

#[derive(Default)]
struct RequestLog {
    seen: Mutex<Vec<SeenRequest>>,
    news: Notify,
    connections: AtomicUsize,
    sent_bytes: AtomicUsize,
}

impl TestServer {
    /// Starts a server whose response depends only on the path and query.
    pub(crate) async fn start(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, 0), answer).await.unwrap()
    }

    pub(crate) async fn start_at(
        addr: impl Into<SocketAddr>,
        answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::serve(addr.into(), None, Arc::new(move |seen: &SeenRequest| answer(seen.path()))).await
    }

    /// Starts a server whose response may depend on the whole request.
    pub(crate) async fn plain(answer: impl Fn(&SeenRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self::serve((Ipv4Addr::LOCALHOST, 0).into(), None, Arc::new(answer)).await.unwrap()
    }

    pub(crate) async fn tls(
        certificate: &TestCertificate,
        answer: impl Fn(&SeenRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let acceptor = certificate.acceptor(&[]);
        Self::serve((Ipv4Addr::LOCALHOST, 0).into(), Some(acceptor), Arc::new(answer)).await.unwrap()
    }

    // `answer` has no type parameter, so the tasks are compiled only once, not once for each test.
    async fn serve(addr: SocketAddr, tls: Option<TlsAcceptor>, answer: Arc<Answer>) -> io::Result<Self> {
        let listener = TcpListener::bind(addr).await?;
        let server = Self { addr: listener.local_addr()?, log: Arc::default() };
        let log = Arc::clone(&server.log);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let connection = log.connections.fetch_add(1, Ordering::SeqCst);
                let (log, answer, tls) = (Arc::clone(&log), Arc::clone(&answer), tls.clone());
                tokio::spawn(async move {
                    stream.set_nodelay(true)?;
                    let stream = match tls {
                        None => Either::Left(stream),
                        Some(tls) => Either::Right(tls.accept(stream).await?),
                    };
                    // The client may end the connection in any way, so errors are ignored.
                    log.serve(stream, connection, &*answer).await
                });
            }
        });
        Ok(server)
    }

    pub(crate) fn origin(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub(crate) fn port(&self) -> u16 {
        self.addr.port()
    }

    pub(crate) fn requests(&self) -> Vec<SeenRequest> {
        self.log.seen.lock().unwrap().clone()
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.log.seen.lock().unwrap().iter().map(|seen| seen.path().to_owned()).collect()
    }

    pub(crate) fn connections(&self) -> usize {
        self.log.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn sent_bytes(&self) -> usize {
        self.log.sent_bytes.load(Ordering::SeqCst)
    }

    /// Waits until the received requests satisfy `done`.
    pub(crate) async fn until(&self, done: impl Fn(&[SeenRequest]) -> bool) {
        loop {
            // Start listening before the check, or a request between the check and the wait would
            // be missed.
            let news = self.log.news.notified();
            if done(&self.log.seen.lock().unwrap()) {
                return;
            }
            news.await;
        }
    }

    /// Waits until `path` was requested.
    pub(crate) async fn wait_for(&self, path: &str) {
        self.until(|seen| seen.iter().any(|seen| seen.path() == path)).await;
    }
}

impl RequestLog {
    async fn serve(
        &self,
        mut stream: Either<TcpStream, TlsStream<TcpStream>>,
        connection: usize,
        answer: &Answer,
    ) -> io::Result<()> {
        for request in 0.. {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await?);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let seen = SeenRequest { at: Instant::now(), connection, request, head };
            self.seen.lock().unwrap().push(seen.clone());
            self.news.notify_waiters();
            for act in answer(&seen) {
                let mut tell = async |text: &[u8]| -> io::Result<()> {
                    stream.write_all(text).await?;
                    self.sent_bytes.fetch_add(text.len(), Ordering::SeqCst);
                    Ok(())
                };
                match act {
                    ServerAction::Send(text) if seen.method() == "HEAD" => {
                        let end = text.windows(4).position(|four| four == b"\r\n\r\n");
                        tell(&text[..end.map_or(text.len(), |end| end + 4)]).await?;
                    }
                    ServerAction::Send(text) => tell(&text).await?,
                    ServerAction::Endless(text) => loop {
                        tell(&text).await?;
                    },
                    ServerAction::Drip(pause, text) => loop {
                        tell(&text).await?;
                        tokio::time::sleep(pause).await;
                    },
                    ServerAction::Pause(pause) => tokio::time::sleep(pause).await,
                    ServerAction::Wait => {
                        // Any further byte, or the end of the client's stream, ends the wait.
                        stream.read_u8().await?;
                    }
                    ServerAction::Reset => {
                        return match stream {
                            Either::Left(stream) => stream.set_zero_linger(),
                            Either::Right(stream) => stream.get_ref().0.set_zero_linger(),
                        };
                    }
                    ServerAction::Close => return stream.shutdown().await,
                }
            }
        }
        Ok(())
    }
}

/// One action of a server while it responds to a request.
#[derive(Clone)]
pub(crate) enum ServerAction {
    Send(Vec<u8>),
    /// Sends these bytes repeatedly until the client disconnects.
    Endless(Vec<u8>),
    /// Sends these bytes repeatedly, with pauses of this length.
    Drip(Duration, Vec<u8>),
    Pause(Duration),
    /// Waits until the client disconnects.
    Wait,
    /// Resets the connection.
    Reset,
    Close,
}

/// All actions with which a server responds to a request.
pub(crate) type Reply = Vec<ServerAction>;

pub(crate) fn send(text: impl AsRef<[u8]>) -> ServerAction {
    ServerAction::Send(text.as_ref().to_vec())
}

/// A complete response. Each line of `headers` ends in `\r\n`. HEAD requests get only the head.
pub(crate) fn answer(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Reply {
    let (status, body) = (StatusCode::from_u16(status).unwrap(), body.as_ref());
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n", body.len());
    vec![ServerAction::Send([head.as_bytes(), body].concat())]
}

pub(crate) fn status(status: u16) -> Reply {
    answer(status, "", "")
}

pub(crate) fn page(media_type: &str, body: impl AsRef<[u8]>) -> Reply {
    answer(200, &format!("content-type: {media_type}\r\n"), body)
}

pub(crate) fn html(body: impl AsRef<[u8]>) -> Reply {
    page("text/html; charset=utf-8", body)
}

pub(crate) fn encoded(coding: &str, body: impl AsRef<[u8]>) -> Reply {
    answer(200, &format!("content-type: text/html\r\ncontent-encoding: {coding}\r\n"), body)
}

pub(crate) fn redirect(to: &str) -> Reply {
    answer(302, &format!("location: {to}\r\n"), "")
}

/// Sends the beginning of a page, and then nothing more.
pub(crate) fn stuck(beginning: &str) -> Reply {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ntransfer-encoding: chunked\r\n\r\n";
    vec![send(format!("{head}{:x}\r\n{beginning}\r\n", beginning.len())), ServerAction::Wait]
}

pub(crate) fn ok_after(millis: u64) -> Reply {
    [vec![ServerAction::Pause(Duration::from_millis(millis))], status(200)].concat()
}

/// The name of an encoding as in `Content-Encoding`, and its encoder.
pub(crate) type Encoder = (&'static str, fn(&[u8]) -> Vec<u8>);

pub(crate) const ENCODERS: [Encoder; 4] = [("gzip", gzip), ("deflate", deflate), ("br", brotli), ("zstd", zstd)];

pub(crate) fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// Encodes as raw deflate, without a zlib header.
pub(crate) fn deflate(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn brotli(text: &[u8]) -> Vec<u8> {
    let mut encoder = ::brotli::CompressorWriter::new(Vec::new(), 4096, 3, 22);
    encoder.write_all(text).unwrap();
    encoder.into_inner()
}

pub(crate) fn zstd(text: &[u8]) -> Vec<u8> {
    ::zstd::stream::encode_all(text, 1).unwrap()
}

/// A self-signed certificate for `127.0.0.1`.
pub(crate) struct TestCertificate {
    pem: String,
    config: rustls::ServerConfig,
}

impl TestCertificate {
    pub(crate) fn new() -> Self {
        Self::made(|_| {})
    }

    /// A certificate that was valid in the past.
    pub(crate) fn expired() -> Self {
        Self::made(|params| {
            params.not_before = rcgen::date_time_ymd(2019, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        })
    }

    /// A TLS acceptor that offers these protocols through ALPN.
    pub(crate) fn acceptor(&self, protocols: &[&str]) -> TlsAcceptor {
        let mut config = self.config.clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config).into()
    }

    /// A context that may connect to loopback and trusts this certificate.
    pub(crate) fn trusting(&self) -> RequestContext {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &self.pem).unwrap();
        RequestContext { tls: tls_config(Some(file.path())).unwrap(), ..context(&["127.0.0.0/8"]) }
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
        Self { pem: certificate.pem(), config }
    }
}
