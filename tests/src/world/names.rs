//! The lab's name server, which resolves the hosts of sites over UDP and TCP. It answers without
//! delay, because name resolution is not part of a round trip. For other names it answers NXDOMAIN.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::world::site_servers::listen;

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
        let (streams, ended) = (tasks.clone(), shutdown.clone());
        tasks.spawn(shutdown.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = tcp.accept().await {
                let hosts = Arc::clone(&hosts);
                streams.spawn(ended.clone().run_until_cancelled_owned(async move {
                    if let Err(error) = serve_tcp(stream, &hosts).await {
                        tracing::debug!(error = format!("{error:#}"), "a name question over tcp failed");
                    }
                }));
            }
        }));
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
pub(crate) fn answer(question: &[u8], hosts: &Hosts) -> Option<Vec<u8>> {
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
    use super::*;
    use hickory_proto::op::Query;
    use hickory_proto::rr::Name;

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
