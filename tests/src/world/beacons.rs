//! Proxies that delay requests to the agents' beacons in the rootless grade. Agents measure each
//! other through these proxies.
//!
//! A proxy forwards each request to the beacon, and responds after the delay of the WAN, which
//! includes the time that the beacon takes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::world::response_delays::{Connection, Destination, Wan};
use crate::world::site_servers::{Body, delayed_body};

/// Possible ports of all beacons and proxies. There are several ports, because an agent outside the
/// lab may use the first port on all addresses.
const BEACON_PORTS: [u16; 4] = [7180, 17180, 27180, 37180];
/// Maximum size of a beacon's response in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// The bound listeners of all proxies.
#[derive(Debug)]
pub struct BeaconProxies {
    listeners: Vec<TcpListener>,
    port: u16,
}

/// A connection from a proxy to a beacon; `None` until the first request.
type Upstream = Mutex<Option<SendRequest<Empty<Bytes>>>>;

impl BeaconProxies {
    /// Binds one proxy for each agent. All proxies have the same port.
    pub async fn bind(wan: &Wan) -> anyhow::Result<Self> {
        let mut last = None;
        for port in BEACON_PORTS {
            match Self::bind_port(wan, port).await {
                Ok(listeners) => return Ok(Self { listeners, port }),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) => Err(error).with_context(|| format!("the beacons need one of the ports {BEACON_PORTS:?}")),
            None => bail!("there is no port for the beacons"),
        }
    }

    async fn bind_port(wan: &Wan, port: u16) -> anyhow::Result<Vec<TcpListener>> {
        let mut listeners = Vec::new();
        for agent in 0..wan.scenario().agents.len() {
            let address = SocketAddr::new(wan.lane().beacon(agent).into(), port);
            listeners
                .push(TcpListener::bind(address).await.with_context(|| format!("listen for a beacon on {address}"))?);
        }
        Ok(listeners)
    }

    /// The port of all proxies. The beacons listen on the same port.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn serve(self, wan: &Wan, tasks: &TaskTracker, shutdown: &CancellationToken) {
        let port = self.port;
        for (agent, listener) in self.listeners.into_iter().enumerate() {
            let (wan, streams, ended) = (wan.clone(), tasks.clone(), shutdown.clone());
            tasks.spawn(shutdown.clone().run_until_cancelled_owned(async move {
                loop {
                    match listener.accept().await {
                        Ok((stream, source)) => {
                            let served = serve_connection(wan.clone(), agent, port, stream, source.ip());
                            streams.spawn(ended.clone().run_until_cancelled_owned(served));
                        }
                        Err(error) => {
                            tracing::warn!(%error, agent, "a beacon proxy could not accept a connection");
                            tokio::time::sleep(Duration::from_millis(50)).await;
                        }
                    }
                }
            }));
        }
    }
}

async fn serve_connection(wan: Wan, agent: usize, port: u16, stream: TcpStream, source: IpAddr) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "nodelay was refused");
    }
    let beacon = SocketAddr::new(wan.lane().agent(agent).into(), port);
    let connection = Arc::new(wan.connect(source, Destination::Beacon(agent)));
    let upstream = Arc::new(Upstream::default());
    let service = service_fn(|request: Request<Incoming>| {
        let arrived = Instant::now();
        let (connection, upstream) = (Arc::clone(&connection), Arc::clone(&upstream));
        async move { pass(&request, connection, &upstream, beacon, arrived).await }
    });
    let served = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    if let Err(error) = served {
        tracing::debug!(%error, agent, "a connection to a beacon broke");
    }
}

/// Forwards a request. If the beacon cannot be reached, the result is an error, and the connection
/// closes, as with a dead host.
async fn pass(
    request: &Request<Incoming>,
    connection: Arc<Connection>,
    upstream: &Upstream,
    beacon: SocketAddr,
    arrived: Instant,
) -> anyhow::Result<Response<Body>> {
    let (parts, body) = ask(request, upstream, beacon).await?.into_parts();
    connection.first_byte(arrived, Duration::ZERO).await;
    let mut response = Response::new(delayed_body(body, connection));
    *response.status_mut() = parts.status;
    *response.headers_mut() = parts.headers;
    Ok(response)
}

async fn ask(request: &Request<Incoming>, upstream: &Upstream, beacon: SocketAddr) -> anyhow::Result<Response<Bytes>> {
    let mut sender = upstream.lock().await;
    let open = match sender.take() {
        Some(open) if !open.is_closed() => open,
        _ => {
            let stream = TcpStream::connect(beacon).await.with_context(|| format!("connect to the beacon {beacon}"))?;
            stream.set_nodelay(true).context("set nodelay")?;
            let (open, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(async move {
                if let Err(error) = driver.await {
                    tracing::debug!(%error, "the connection to a beacon broke");
                }
            });
            open
        }
    };
    let open = sender.insert(open);
    let mut passed = Request::new(Empty::new());
    *passed.method_mut() = request.method().clone();
    *passed.uri_mut() = request.uri().clone();
    *passed.headers_mut() = request.headers().clone();
    open.ready().await?;
    let (parts, body) = open.send_request(passed).await.context("ask the beacon")?.into_parts();
    let body = http_body_util::Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("read the beacon's answer: {error}"))?.to_bytes();
    Ok(Response::from_parts(parts, body))
}
