//! A small HTTP server, used for the beacon and for metrics. Because anyone on the network may
//! connect, the server limits the number of connections, the header size and the idle time. The
//! server stores nothing that a client sends.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::connections::{Connection, Connections};

const MAX_HEADERS: usize = 32;
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Time limit for the head of the next request on a connection. The limit is longer than the pause
/// between two samples, so that a prober keeps its connection. Tests use a shorter limit.
const IDLE: Duration = Duration::from_secs(if cfg!(test) { 6 } else { 30 });
/// Maximum lifetime of a connection, so that no client keeps a connection permanently.
const MAX_LIFE: Duration = Duration::from_secs(600);
/// Delay after a failed accept, which usually means that no file descriptor is free.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Makes the response to a request. Request bodies are not read.
pub(crate) type Reply = fn(&Request<Incoming>) -> Response<Full<Bytes>>;

/// A server that has bound its address but does not serve yet.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    reply: Reply,
    pub port: u16,
}

impl Listener {
    /// Binds the address; port 0 takes any free port.
    pub async fn bind(listen: SocketAddr, reply: Reply) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, reply, port })
    }

    /// Serves until `stop` is cancelled. If serving ends for another reason, cancels `stop`, so
    /// that the agent stops and reports the failure.
    pub async fn serve(self, stop: CancellationToken) {
        supervised(self.serve_all(stop.clone()), stop).await;
    }

    async fn serve_all(self, stop: CancellationToken) {
        let connections = Connections::default();
        let mut failing = false;
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, port = self.port, "cannot accept connections; trying again");
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            failing = false;
            let Some((stream, connection)) = connections.accept(stream, peer, self.port) else { continue };
            let (stop, reply) = (stop.clone(), self.reply);
            tokio::spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = connection.close.cancelled() => {}
                    () = answer(stream, &connection, reply) => {}
                }
            });
        }
    }
}

/// Runs a future that should never end. If the future ends, even by a panic, cancels `stop`.
async fn supervised(serving: impl Future<Output = ()>, stop: CancellationToken) {
    let _ended = stop.drop_guard();
    serving.await;
}

async fn answer(stream: TcpStream, connection: &Connection, reply: Reply) {
    // Send responses without delay, because other agents measure the time until a response arrives.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE).max_headers(MAX_HEADERS).max_buf_size(MAX_HEADER_BYTES);
    let service = service_fn(async |request| {
        connection.note_request();
        Ok::<_, Infallible>(reply(&request))
    });
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(MAX_LIFE, serving).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::debug!(%error, "connection broke"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::run::connections::MAX_CONNECTIONS;

    async fn ask(port: u16, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn beacon() -> Listener {
        Listener::bind("127.0.0.1:0".parse().unwrap(), crate::run::beacon::reply).await.unwrap()
    }

    #[tokio::test]
    async fn the_beacon_answers_and_stops() {
        let beacon = beacon().await;
        let port = beacon.port;
        assert_ne!(port, 0);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(beacon.serve(stop.clone()));
        let head = ask(port, "HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 204"), "{head}");
        let post = ask(port, "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(post.starts_with("HTTP/1.1 405"), "{post}");
        let many = format!("GET / HTTP/1.1\r\n{}connection: close\r\n\r\n", "a: b\r\n".repeat(100));
        assert!(ask(port, &many).await.starts_with("HTTP/1.1 431"));
        stop.cancel();
        serving.await.unwrap();
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    }

    #[tokio::test]
    async fn one_peer_cannot_block_a_listener() {
        let beacon = beacon().await;
        let port = beacon.port;
        let stop = CancellationToken::new();
        tokio::spawn(beacon.serve(stop.clone()));
        let mut idle = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            idle.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.9:0".parse().unwrap()).unwrap();
        let mut other = socket.connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
        let asked = other.write_all(b"HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        asked.await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(Duration::from_secs(5), other.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    }

    #[tokio::test]
    async fn half_a_request_is_ended_and_delays_nobody() {
        let beacon = beacon().await;
        let port = beacon.port;
        tokio::spawn(beacon.serve(CancellationToken::new()));
        let mut half = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        half.write_all(b"HEAD / HTTP/1.1\r\nhost:").await.unwrap();
        let head = ask(port, "HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 204"), "{head}");
        let began = Instant::now();
        assert_eq!(half.read_to_end(&mut Vec::new()).await.unwrap(), 0);
        let took = began.elapsed();
        assert!(took <= 2 * IDLE && took > IDLE / 2, "{took:?}");
    }

    #[tokio::test]
    async fn a_listener_that_dies_stops_its_agent_at_once() {
        let stop = CancellationToken::new();
        let serving = tokio::spawn(supervised(async { panic!("on purpose") }, stop.clone()));
        stop.cancelled().await;
        assert!(serving.await.unwrap_err().is_panic());
    }
}
