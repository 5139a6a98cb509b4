//! Tests sites with TLS: valid and invalid HTTP/2, and certificates that are not trusted.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;

use super::hostile::{QUICK, ends_in_time, quick_of};
use super::*;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// HPACK bytes for `:status: 200` and `:status: 404` (RFC 7541, appendix A).
const OK: u8 = 0x88;
const NOT_FOUND: u8 = 0x8d;

/// An HTTP/2 frame (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn header(stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, block)
}

/// The frames of a complete HTML page.
fn page_of(stream: u32, body: &str) -> Vec<u8> {
    // `content-type: text/html` as an HPACK literal whose name is entry 31 of the static table.
    let block = [&[OK, 0x0f, 0x10, 9][..], b"text/html"].concat();
    [header(stream, &block), frame(DATA, END_STREAM, stream, body.as_bytes())].concat()
}

/// Returns the frames to send in response to a request on a stream, and whether to repeat them.
type FrameReply = fn(u32) -> (Vec<u8>, bool);

/// A site that sends `bad` in response to its third request, which is for `/bad`. All other
/// responses are normal.
struct FrameSite {
    addr: SocketAddr,
    connections: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl FrameSite {
    async fn start(certificate: &TestCertificate, bad: FrameReply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let site = Self { addr: listener.local_addr().unwrap(), connections: Arc::default(), ended: Arc::default() };
        let ended = Arc::clone(&site.ended);
        let (connections, requests) = (Arc::clone(&site.connections), Arc::new(AtomicUsize::new(0)));
        let acceptor = certificate.acceptor(&["h2"]);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                let (acceptor, requests, ended) = (acceptor.clone(), Arc::clone(&requests), Arc::clone(&ended));
                tokio::spawn(async move {
                    // The crawl may end the connection in any way, so errors are ignored.
                    drop(serve_frames(acceptor.accept(stream).await.unwrap(), &requests, bad).await);
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        site
    }
}

async fn serve_frames(
    mut stream: TlsStream<TcpStream>,
    requests: &AtomicUsize,
    bad: FrameReply,
) -> std::io::Result<()> {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]).try_into().unwrap()];
        stream.read_exact(&mut payload).await?;
        let id = u32::from_be_bytes(id);
        match (kind, flags) {
            (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, 1, 0, &[])).await?,
            (HEADERS, _) => {
                let (reply, again) = match requests.fetch_add(1, Ordering::SeqCst) {
                    0 => (frame(HEADERS, END_HEADERS | END_STREAM, id, &[NOT_FOUND]), false),
                    1 => (page_of(id, "<a href=/bad><a href=/after>"), false),
                    2 => bad(id),
                    _ => (page_of(id, "after"), false),
                };
                stream.write_all(&reply).await?;
                if again {
                    loop {
                        stream.write_all(&reply).await?;
                    }
                }
            }
            _ => {}
        }
    }
}

/// Crawls a site that responds to `/bad` with `bad`. Returns the outcome, the error of this
/// request, and the number of connections.
async fn frames(bad: FrameReply) -> (Outcome, String, usize) {
    let certificate = TestCertificate::new();
    let site = FrameSite::start(&certificate, bad).await;
    let origin = format!("https://{}", site.addr);
    // A server that sends endless frames keeps the machine busy, so even valid pages may arrive
    // late.
    let timeouts = Timeouts { first_byte: Duration::from_secs(1), ..QUICK };
    let crawl = TestCrawl { timeouts, ..TestCrawl::at(&origin).context(certificate.trusting()) };
    let outcome = ends_in_time(crawl).await;
    let error = outcome.message.strip_prefix(&format!("{origin}/bad: ")).unwrap_or(&outcome.message).to_owned();
    let (connections, over) = (site.connections.load(Ordering::SeqCst), Instant::now());
    while site.ended.load(Ordering::SeqCst) < connections {
        // If the server does not notice the closed connection, the library gives up after 30 s.
        assert!(over.elapsed() < Duration::from_secs(45), "a connection outlives its crawl: {error}");
        tokio::task::yield_now().await;
    }
    (outcome, error, connections)
}

#[tokio::test]
async fn http2_is_used_on_one_connection_if_offered() {
    let certificate = TestCertificate::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let (accepted, acceptor) = (Arc::clone(&connections), certificate.acceptor(&["h2", "http/1.1"]));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            accepted.fetch_add(1, Ordering::SeqCst);
            let stream = TokioIo::new(acceptor.accept(stream).await.unwrap());
            let service = hyper::service::service_fn(async |request: hyper::Request<Incoming>| {
                assert_eq!(request.version(), hyper::Version::HTTP_2);
                let body = if request.uri().path() == "/" { "<a href=/a><a href=/b>" } else { "" };
                let response = hyper::Response::builder().header("content-type", "text/html");
                Ok::<_, Infallible>(response.body(Full::new(Bytes::from(body))).unwrap())
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(async move { drop(server.serve_connection(stream, service).await) });
        }
    });
    let outcome = TestCrawl::at(&format!("https://{addr}")).context(certificate.trusting()).outcome().await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 3, 0), "{}", outcome.message);
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    assert!(outcome.rtt.is_some());
}

#[tokio::test]
async fn a_stream_that_is_reset_costs_one_page_and_not_the_connection() {
    for bad in [
        (|id| (frame(RESET, 0, id, &2_u32.to_be_bytes()), false)) as FrameReply,
        // REFUSED_STREAM permits the client to repeat the request at once, but the crawler must
        // keep the request interval.
        |id| (frame(RESET, 0, id, &7_u32.to_be_bytes()), false),
        |id| ([header(id, &[OK]), frame(RESET, 0, id, &2_u32.to_be_bytes())].concat(), false),
    ] {
        let (outcome, error, connections) = frames(bad).await;
        assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 1), "{error}");
        assert!(error.contains("stream error") || error.contains("refused"), "{error}");
        assert_eq!(connections, 1, "{error}");
    }
}

#[tokio::test]
async fn a_server_that_sends_go_away_is_connected_again() {
    let (outcome, error, connections) = frames(|_| (frame(GO_AWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 1]), false)).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 1), "{error}");
    assert_eq!(connections, 2, "{error}");
}

#[tokio::test]
async fn a_header_that_is_too_large_is_refused_in_http2_too() {
    let fields: FrameReply = |id| (header(id, &[&[OK][..], &[0, 1, b'x', 1, b'v'].repeat(101)].concat()), false);
    // A field of 4000 bytes is added to the HPACK table. Single bytes then refer to it many times,
    // so a small header expands a lot.
    let few: FrameReply =
        |id| (header(id, &[&[OK, 0x40, 1, b'x', 0x7f, 0xa1, 0x1e], &[b'v'; 4000][..], &[0xbe; 20]].concat()), false);
    for bad in [fields, few] {
        let (outcome, error, connections) = frames(bad).await;
        assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 1), "{error}");
        assert_eq!(error, "the header has more than 64 KiB, or more than 100 fields");
        assert_eq!(connections, 1);
    }
    let bomb: FrameReply = |id| {
        (header(id, &[&[OK, 0x40, 1, b'x', 0x7f, 0xa1, 0x1e], &[b'v'; 4000][..], &[0xbe; 12_000]].concat()), false)
    };
    let endless: FrameReply = |id| {
        (
            [frame(HEADERS, 0, id, &[OK]), frame(CONTINUATION, 0, id, &[0, 1, b'x', 1, b'v'].repeat(1000)).repeat(500)]
                .concat(),
            false,
        )
    };
    for bad in [bomb, endless] {
        let (outcome, error, _) = frames(bad).await;
        assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 1), "{error}");
        assert!(!error.is_empty(), "{outcome:?}");
    }
}

#[tokio::test]
async fn endless_frames_time_out() {
    for bad in [
        (|_| (frame(PING, 0, 0, &[0; 8]), true)) as FrameReply,
        |_| (frame(SETTINGS, 0, 0, &[]), true),
        |id| (header(id, &[0x08, 3, b'1', b'0', b'3']), true),
        |id| ([header(id, &[OK]), frame(DATA, 0, id, &[])].concat(), false),
        |id| (frame(CONTINUATION, 0, id, &[]), true),
    ] {
        let (outcome, error, _) = frames(bad).await;
        assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 1), "{error}");
    }
}

#[tokio::test]
async fn more_data_than_was_allowed_is_refused() {
    let (outcome, error, _) =
        frames(|id| ([header(id, &[OK]), frame(DATA, 0, id, &[b'x'; 16_384]).repeat(64)].concat(), true)).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 1), "{error}");
    assert!(outcome.bytes < 1 << 20, "{}", outcome.bytes);
}

#[tokio::test]
async fn a_certificate_that_is_self_signed_or_has_expired_is_not_trusted() {
    let (own, expired) = (TestCertificate::new(), TestCertificate::expired());
    let cases = [(&own, context(&["127.0.0.1/32"]), "UnknownIssuer"), (&expired, expired.trusting(), "xpired")];
    for (certificate, context, expected) in cases {
        let server = TestServer::tls(certificate, |_| vec![ServerAction::Close]).await;
        let origin = format!("https://{}", server.addr);
        let outcome = quick_of(TestCrawl::at(&origin).context(context.clone())).await;
        assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Unreachable, 0));
        assert_eq!(outcome.trouble, Some(Trouble::Tls), "{}", outcome.message);
        assert!(outcome.message.contains("certificate") && outcome.message.contains(expected), "{}", outcome.message);
        // The certificate is also checked while the crawl finds out whether the site uses TLS.
        let outcome = TestCrawl::named(&server.addr.to_string()).context(context).outcome().await;
        assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Unreachable, 0), "{}", outcome.message);
        assert!(server.requests().is_empty());
    }
}
