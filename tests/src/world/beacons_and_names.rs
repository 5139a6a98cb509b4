//! Servers that agents reach beside the sites: the lab's name server, and the proxies that delay
//! requests to the agents' beacons in the rootless grade. Agents measure each other through these
//! proxies.
//!
//! The name server resolves the hosts of sites over UDP and TCP. It answers without delay, because
//! name resolution is not part of a round trip. For other names it answers NXDOMAIN.
//!
//! A proxy forwards each request to the beacon, and responds after the delay of the WAN, which
//! includes the time that the beacon takes.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::response_delays::{Connection, Destination, Wan};
use super::site_servers::{Body, accept_all, delayed_body, listen};

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
            let wan = wan.clone();
            accept_all(listener, "a beacon proxy", tasks, shutdown, move |stream, source| {
                serve_connection(wan.clone(), agent, port, stream, source)
            });
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

/// The name server's port.
pub const NAMES_PORT: u16 = 5300;
const TTL_SECONDS: u32 = 300;
/// Maximum size in bytes of a query over UDP.
const MAX_QUESTION: usize = 4096;

/// Addresses by host name. Names are in lower case, without a trailing dot.
pub type Hosts = HashMap<String, Ipv4Addr>;

/// A name server with bound sockets.
#[derive(Debug)]
pub struct NameServer {
    udp: UdpSocket,
    tcp: TcpListener,
}

impl NameServer {
    /// Binds the sockets in the network namespace of the calling thread.
    pub fn bind(address: SocketAddr) -> std::io::Result<Self> {
        let udp = std::net::UdpSocket::bind(address)?;
        udp.set_nonblocking(true)?;
        Ok(Self { udp: UdpSocket::from_std(udp)?, tcp: listen(address)? })
    }

    pub fn serve(self, hosts: Hosts, tasks: &TaskTracker, shutdown: &CancellationToken) {
        let hosts = Arc::new(hosts);
        let Self { udp, tcp } = self;
        let asked = Arc::clone(&hosts);
        tasks.spawn(shutdown.clone().run_until_cancelled_owned(async move { serve_udp(&udp, &asked).await }));
        accept_all(tcp, "the name server", tasks, shutdown, move |stream, _| {
            let hosts = Arc::clone(&hosts);
            async move {
                if let Err(error) = serve_tcp(stream, &hosts).await {
                    tracing::debug!(error = format!("{error:#}"), "a name question over tcp failed");
                }
            }
        });
    }
}

async fn serve_udp(socket: &UdpSocket, hosts: &Hosts) {
    let mut question = vec![0_u8; MAX_QUESTION];
    loop {
        let (length, from) = match socket.recv_from(&mut question).await {
            Ok(received) => received,
            Err(error) => {
                // The error means that an earlier answer went to a closed port. The socket remains
                // usable.
                tracing::debug!(%error, "a name answer was refused");
                continue;
            }
        };
        let Some(answer) = answer(&question[..length], hosts) else { continue };
        if let Err(error) = socket.send_to(&answer, from).await {
            tracing::debug!(%error, "a name answer could not be sent");
        }
    }
}

async fn serve_tcp(mut stream: TcpStream, hosts: &Hosts) -> anyhow::Result<()> {
    loop {
        let mut length = [0_u8; 2];
        if stream.read_exact(&mut length).await.is_err() {
            return Ok(());
        }
        let mut question = vec![0_u8; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut question).await.context("read the question")?;
        let Some(answer) = answer(&question, hosts) else { return Ok(()) };
        let length = u16::try_from(answer.len()).context("frame the answer")?;
        stream.write_all(&length.to_be_bytes()).await.context("send the answer")?;
        stream.write_all(&answer).await.context("send the answer")?;
    }
}

/// The answer to a query; `None` if the query is invalid.
fn answer(question: &[u8], hosts: &Hosts) -> Option<Vec<u8>> {
    let question = Message::from_vec(question).ok()?;
    let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
    reply.metadata.recursion_desired = question.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.metadata.authoritative = true;
    let query = question.queries.first()?.clone();
    let host = query.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
    match hosts.get(&host) {
        Some(address) if query.query_type() == RecordType::A && query.query_class() == DNSClass::IN => {
            reply.add_answer(Record::from_rdata(query.name().clone(), TTL_SECONDS, RData::A(A(*address))));
        }
        Some(_) => {}
        None => reply.metadata.response_code = ResponseCode::NXDomain,
    }
    reply.add_query(query);
    reply.to_vec().ok()
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::Query;
    use hickory_proto::rr::Name;

    use super::*;

    fn question(host: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_ascii(host).unwrap(), kind));
        message.to_vec().unwrap()
    }

    async fn server() -> (SocketAddr, CancellationToken) {
        let server = NameServer {
            udp: UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            tcp: TcpListener::bind("127.0.0.1:0").await.unwrap(),
        };
        let address = server.udp.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let hosts = Hosts::from([("www.one.test".to_owned(), Ipv4Addr::new(127, 2, 0, 1))]);
        server.serve(hosts, &TaskTracker::new(), &shutdown);
        (address, shutdown)
    }

    async fn ask(server: SocketAddr, host: &str, kind: RecordType) -> Message {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(&question(host, kind), server).await.unwrap();
        let mut answer = vec![0; 512];
        let length = socket.recv(&mut answer).await.unwrap();
        Message::from_vec(&answer[..length]).unwrap()
    }

    #[tokio::test]
    async fn sites_have_an_address_and_other_names_do_not_exist() {
        let (server, shutdown) = server().await;
        let found = ask(server, "WWW.One.test.", RecordType::A).await;
        assert_eq!(found.answers[0].data, RData::A(A::new(127, 2, 0, 1)));
        let other_kind = ask(server, "www.one.test.", RecordType::AAAA).await;
        assert!(other_kind.answers.is_empty());
        assert_eq!(other_kind.metadata.response_code, ResponseCode::NoError);
        let unknown = ask(server, "www.two.test.", RecordType::A).await;
        assert_eq!(unknown.metadata.response_code, ResponseCode::NXDomain);
        shutdown.cancel();
    }

    #[test]
    fn rubbish_gets_no_answer() {
        assert_eq!(answer(b"not a question", &Hosts::new()), None);
    }
}
