//! A collector of traces on loopback. It accepts every request, and stores nothing.

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::Context;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// Starts a collector, which calls `take` for every request until the runtime ends. Returns its
/// address.
pub async fn collector(take: impl Fn(&Parts, &Bytes) + Clone + Send + 'static) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("listen as a collector")?;
    let address = listener.local_addr().context("read the collector's address")?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let take = take.clone();
            let service = service_fn(move |request| accept(request, take.clone()));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(address)
}

async fn accept(
    request: Request<Incoming>,
    take: impl Fn(&Parts, &Bytes),
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    // If the client disconnects while it sends a body, ignore the request.
    if let Ok(body) = body.collect().await {
        take(&head, &body.to_bytes());
    }
    Ok(Response::new(Full::from("{}")))
}
