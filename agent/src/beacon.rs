//! The beacon: a tiny HTTP server that makes a landmark measurable by other agents.
//!
//! It answers HEAD and GET with 204 and nothing else. It is open to the network, so connections, headers and idle time
//! are bounded, and nothing a client sends is kept.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Connections served at once; more wait in the kernel's queue. A fleet's agents each measure at most some dozens.
const MAX_CONNECTIONS: usize = 256;
/// Headers of one request.
const MAX_HEADERS: usize = 32;
/// Bytes held of one request's headers.
const MAX_HEADER_BYTES: usize = 16 << 10;
/// How long a connection may wait for a request: longer than the pause between two probes.
const IDLE: Duration = Duration::from_secs(30);
/// How long one connection may live at all, so that no client holds a place for ever.
const MAX_LIFE: Duration = Duration::from_secs(600);
/// The wait after a failed accept: descriptors have run out, and may come back.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A bound beacon that does not answer yet.
#[derive(Debug)]
pub struct Beacon {
    listener: TcpListener,
    /// The port it is bound to.
    pub port: u16,
}

impl Beacon {
    /// Binds the beacon; port 0 takes any.
    ///
    /// # Errors
    /// When the address is taken or not ours.
    pub async fn bind(listen: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    /// Answers until it is stopped.
    pub async fn serve(self, stop: CancellationToken) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.accept(&places) => accepted,
            };
            let (stream, place) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "beacon did not accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let stop = stop.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = answer(stream) => {}
                }
                drop(place);
            });
        }
    }

    async fn accept(&self, places: &Arc<Semaphore>) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
        let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
        let (stream, _) = self.listener.accept().await?;
        Ok((stream, place))
    }
}

async fn answer(stream: TcpStream) {
    // The answer must leave at once: it is what others measure.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE).max_headers(MAX_HEADERS).max_buf_size(MAX_HEADER_BYTES);
    let connection = builder.serve_connection(TokioIo::new(stream), service_fn(reply));
    match tokio::time::timeout(MAX_LIFE, connection).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::debug!(%error, "beacon connection broke"),
    }
}

async fn reply(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = match *request.method() {
        Method::HEAD | Method::GET => StatusCode::NO_CONTENT,
        _ => StatusCode::METHOD_NOT_ALLOWED,
    };
    Ok(response)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(port: u16, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_beacon_answers_and_stops() {
        let beacon = Beacon::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
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
}
