//! A site on loopback that answers as each test wants and keeps a log of what it was asked; and a name server that
//! gives every name one address.

use std::convert::Infallible;
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use futures::stream::{self, StreamExt};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderName, LOCATION, USER_AGENT};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Notify;
use tokio::time::Instant;

/// One request as the site saw it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) at: Instant,
    pub(super) path: String,
    pub(super) host: String,
    pub(super) user_agent: String,
    pub(super) authorized: bool,
}

/// What the site does with a request.
pub(super) enum Reply {
    /// A status, one header and a body.
    Answer(u16, Option<(HeaderName, String)>, String),
    /// HTML with an `X-Robots-Tag`.
    Tagged(String, String),
    /// HTML with a `Content-Encoding`.
    Encoded(&'static str, Vec<u8>),
    /// The beginning of a body, then nothing.
    Stuck(String),
    /// Nothing, ever.
    Never,
    /// The end of the connection.
    Reset,
}

impl Reply {
    pub(super) fn status(status: u16) -> Self {
        Self::Answer(status, None, String::new())
    }
}

pub(super) fn html(body: &str) -> Reply {
    page("text/html; charset=utf-8", body)
}

pub(super) fn page(media_type: &str, body: &str) -> Reply {
    Reply::Answer(200, Some((CONTENT_TYPE, media_type.to_owned())), body.to_owned())
}

pub(super) fn redirect(to: &str) -> Reply {
    Reply::Answer(302, Some((LOCATION, to.to_owned())), String::new())
}

/// A running site; it ends with the test.
pub(super) struct TestSite {
    addr: SocketAddr,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    seen: Mutex<Vec<Seen>>,
    news: Notify,
}

impl TestSite {
    pub(super) async fn start(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_at([127, 0, 0, 1], answer).await
    }

    pub(super) async fn start_at(addr: [u8; 4], answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::from(addr), 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (log, answer) = (Arc::new(Log::default()), Arc::new(answer));
        let site = Self { addr, log: Arc::clone(&log) };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                let service = service_fn(move |request| {
                    let reply = answer(log.note(&request).as_str());
                    respond(reply)
                });
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move { drop(connection.await) });
            }
        });
        site
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn port(&self) -> u16 {
        self.addr.port()
    }

    pub(super) fn origin(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.log.seen.lock().unwrap().clone()
    }

    pub(super) fn paths(&self) -> Vec<String> {
        self.seen().into_iter().map(|request| request.path).collect()
    }

    /// Returns when `path` was asked for.
    pub(super) async fn wait_for(&self, path: &str) {
        while !self.paths().iter().any(|seen| seen == path) {
            self.log.news.notified().await;
        }
    }
}

impl Log {
    fn note(&self, request: &Request<Incoming>) -> String {
        let header = |name| request.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        let path = request.uri().to_string();
        self.seen.lock().unwrap().push(Seen {
            at: Instant::now(),
            path: path.clone(),
            host: header(HOST),
            user_agent: header(USER_AGENT),
            authorized: request.headers().contains_key(AUTHORIZATION),
        });
        self.news.notify_one();
        path
    }
}

type Body = BoxBody<Bytes, Infallible>;

async fn respond(reply: Reply) -> Result<Response<Body>, std::io::Error> {
    let whole = |body: Vec<u8>| Full::new(Bytes::from(body)).boxed();
    let response = match reply {
        Reply::Answer(status, header, body) => {
            let mut response = Response::builder().status(status);
            if let Some((name, value)) = header {
                response = response.header(name, value);
            }
            response.body(whole(body.into_bytes()))
        }
        Reply::Tagged(tag, body) => {
            let response = Response::builder().header(CONTENT_TYPE, "text/html").header("x-robots-tag", tag);
            response.body(whole(body.into_bytes()))
        }
        Reply::Encoded(coding, body) => {
            Response::builder().header(CONTENT_TYPE, "text/html").header(CONTENT_ENCODING, coding).body(whole(body))
        }
        Reply::Stuck(beginning) => {
            let beginning = stream::iter([Ok(Frame::data(Bytes::from(beginning)))]);
            let body = beginning.chain(stream::once(pending()));
            Response::builder().header(CONTENT_TYPE, "text/html").body(BodyExt::boxed(StreamBody::new(body)))
        }
        Reply::Never => pending().await,
        Reply::Reset => return Err(std::io::Error::other("the test wants it so")),
    };
    Ok(response.unwrap())
}

/// Starts a name server that answers every question for an IPv4 address with `addr`, and every other with nothing.
pub(super) async fn start_dns(addr: [u8; 4]) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut query = [0; 512];
        loop {
            let (length, client) = socket.recv_from(&mut query).await.unwrap();
            // The question ends after its name (labels up to an empty one), type and class.
            let name = 12 + query[12..length].iter().position(|byte| *byte == 0).unwrap();
            let wants_ipv4 = query[name + 2] == 1;
            let mut answer = query[..name + 5].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(wants_ipv4), 0, 0, 0, 0]);
            if wants_ipv4 {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                answer.extend(addr);
            }
            socket.send_to(&answer, client).await.unwrap();
        }
    });
    server
}
