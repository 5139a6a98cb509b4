//! A name server on loopback, and contexts of requests that may connect to private networks.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, SOA};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;

use crate::net::dns::Resolver;
use crate::net::guard::Guard;
use crate::net::request_context::{RequestContext, tls_config};
use crate::net::user_agent::UserAgent;

/// A name server whose answers the test decides. The server counts the queries.
pub(crate) struct TestNames {
    pub(crate) addr: SocketAddr,
    asked: Arc<Mutex<HashMap<String, usize>>>,
    questions: Arc<AtomicUsize>,
}

pub(crate) enum DnsAnswer {
    /// The name has these addresses, with this TTL in seconds.
    At(Vec<IpAddr>, u32),
    /// The name does not exist, with this TTL in seconds.
    Gone(u32),
    Silent,
}

impl TestNames {
    /// Starts a server that resolves these names, to IPv4 addresses only.
    pub(crate) async fn start(names: &'static [(&'static str, Ipv4Addr)]) -> Self {
        Self::answering(|name, _| {
            let known = names.iter().filter(|(known, _)| *known == name).map(|(_, addr)| IpAddr::V4(*addr));
            let known: Vec<IpAddr> = known.collect();
            if known.is_empty() { DnsAnswer::Gone(60) } else { DnsAnswer::At(known, 60) }
        })
        .await
    }

    /// Starts a server whose answers come from `answer`. This function receives the name, and the
    /// number of earlier IPv4 queries for it.
    pub(crate) async fn answering(answer: impl Fn(&str, usize) -> DnsAnswer + Send + 'static) -> Self {
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

    /// A context that may connect to these networks and uses this name server.
    pub(crate) fn context(&self, allow_net: &[&str]) -> RequestContext {
        RequestContext { resolver: Resolver::new(Some(self.addr)).unwrap(), ..context(allow_net) }
    }

    /// Number of queries of all types, for all names.
    pub(crate) fn all_queries(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }

    /// Number of IPv4 queries for a name.
    pub(crate) fn queries(&self, name: &str) -> usize {
        self.asked.lock().unwrap().get(name).copied().unwrap_or_default()
    }
}

fn dns_answer(query: &Message, named: DnsAnswer) -> Option<Vec<u8>> {
    let question = query.queries[0].clone();
    let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
    answer.metadata.recursion_available = true;
    let record = |ttl, data| Record::from_rdata(question.name().clone(), ttl, data);
    match named {
        DnsAnswer::Silent => return None,
        DnsAnswer::Gone(ttl) => {
            answer.metadata.response_code = ResponseCode::NXDomain;
            let soa = SOA::new(Name::root(), Name::root(), 1, 60, 60, 60, ttl);
            answer.add_authority(record(ttl, RData::SOA(soa)));
        }
        DnsAnswer::At(addresses, ttl) => {
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

/// A context that may connect to these networks. The context resolves no names: its name server is
/// on the discard port, where no server listens.
pub(crate) fn context(allow_net: &[&str]) -> RequestContext {
    RequestContext {
        guard: Guard::new(allow_net.iter().map(|net| net.parse().unwrap()).collect()),
        resolver: Resolver::new("127.0.0.1:9".parse().ok()).unwrap(),
        user_agent: UserAgent::new("https://example.org/crawler").unwrap(),
        bind: None,
        tls: tls_config(None).unwrap(),
    }
}
