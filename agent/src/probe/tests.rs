use std::net::Ipv4Addr;
use std::time::Duration;

use super::measure_host::settle;
use super::*;
use crate::net::dns::DnsError;
use crate::net::origin::Origin;
use crate::net::request_context::RequestContext;
use crate::testing::{
    SeenRequest, ServerAction, TestCertificate, TestNames, TestServer, answer, context, ok_after, redirect, send,
    status,
};

const NAMES: [(&str, Ipv4Addr); 2] =
    [("site.example.com", Ipv4Addr::LOCALHOST), ("inside.example.com", Ipv4Addr::new(10, 0, 0, 1))];
const MILLISECOND: Duration = Duration::from_millis(1);

pub(super) fn order(samples: u32) -> ProbeOrder {
    ProbeOrder {
        metric: Metric::Ttfb,
        samples,
        least_samples: None,
        share_max_age: None,
        interval: Duration::ZERO,
        timeout: Duration::from_secs(5),
        lock: AddressLock::Anywhere,
    }
}

async fn probe(server: &TestServer, order: &ProbeOrder) -> Result<HostMeasurement, ProbeError> {
    let target = Target::url(&format!("http://{}/", server.addr)).unwrap();
    measure(&context(&["127.0.0.0/8"]), &target, order, &mut |_| {}).await
}

#[tokio::test]
async fn the_first_request_of_a_connection_is_discarded() {
    let server = TestServer::plain(|seen: &SeenRequest| ok_after(if seen.request == 0 { 400 } else { 20 })).await;
    let probed = probe(&server, &order(3)).await.unwrap();
    assert_eq!((probed.samples.len(), probed.lost), (3, 0));
    for sample in &probed.samples {
        assert!(*sample >= 20 * MILLISECOND && *sample < 300 * MILLISECOND, "{sample:?}");
    }
    assert_eq!(probed.phases.dns, None, "no name was resolved");
    assert!(probed.phases.connect.is_some() && probed.phases.tls.is_none());
    let seen = server.requests();
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|seen| seen.method() == "HEAD" && seen.connection == 0));
    assert!(seen.iter().all(|seen| seen.head.contains("landfall-agent/0.1 (+https://example.org/crawler)")));
}

#[tokio::test]
async fn a_server_that_refuses_head_is_measured_by_get() {
    let server = TestServer::plain(|seen: &SeenRequest| match seen.method() {
        "HEAD" => status(405),
        _ => answer(200, "", "hello"),
    })
    .await;
    assert_eq!(probe(&server, &order(2)).await.unwrap().samples.len(), 2);
    let methods: Vec<String> = server.requests().iter().map(|seen| seen.method().to_owned()).collect();
    assert_eq!(methods, ["HEAD", "GET", "GET"]);
}

#[tokio::test]
async fn a_server_that_disconnects_on_head_is_measured_by_get() {
    let server = TestServer::plain(|seen: &SeenRequest| match seen.method() {
        "HEAD" => vec![ServerAction::Close],
        _ => ok_after(0),
    })
    .await;
    assert_eq!(probe(&server, &order(2)).await.unwrap().samples.len(), 2);
    assert_eq!(server.requests().iter().filter(|seen| seen.method() == "HEAD").count(), 1);
}

#[tokio::test]
async fn a_long_body_is_dropped_and_the_next_connection_warmed() {
    let server = TestServer::plain(|seen: &SeenRequest| match seen.method() {
        "HEAD" => status(501),
        _ => vec![send("HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\nx")],
    })
    .await;
    assert_eq!(probe(&server, &order(2)).await.unwrap().samples.len(), 2);
    let seen: Vec<(usize, String)> =
        server.requests().iter().map(|seen| (seen.connection, seen.method().to_owned())).collect();
    let expected = [(0, "HEAD"), (0, "GET"), (1, "HEAD"), (1, "GET")].map(|(n, method)| (n, method.to_owned()));
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_connection_closed_between_samples_loses_nothing() {
    let server = TestServer::plain(|seen: &SeenRequest| match (seen.connection, seen.request) {
        (0, 2) => vec![ServerAction::Close],
        _ => ok_after(0),
    })
    .await;
    let probed = probe(&server, &order(3)).await.unwrap();
    assert_eq!((probed.samples.len(), probed.lost), (3, 0));
}

#[tokio::test]
async fn a_server_that_closes_after_each_answer_is_measured_by_first_requests() {
    let server =
        TestServer::start(|_| [answer(200, "connection: close\r\n", ""), vec![ServerAction::Close]].concat()).await;
    let probed = probe(&server, &order(5)).await.unwrap();
    assert_eq!((probed.samples.len(), probed.lost), (5, 0));
    assert!(server.requests().len() <= 7, "{} requests", server.requests().len());
}

#[tokio::test]
async fn an_unanswered_sample_is_lost() {
    let server = TestServer::plain(|seen: &SeenRequest| match (seen.connection, seen.request) {
        (0, 2) => vec![ServerAction::Wait],
        _ => ok_after(0),
    })
    .await;
    let order = ProbeOrder { timeout: 200 * MILLISECOND, ..order(4) };
    let mut lost = Vec::new();
    let target = Target::url(&format!("http://{}/", server.addr)).unwrap();
    let context = context(&["127.0.0.0/8"]);
    let mut watch = |seen: Observation| {
        if let Observation::Lost(why) = seen {
            lost.push(why);
        }
    };
    let probed = measure(&context, &target, &order, &mut watch).await.unwrap();
    assert_eq!((probed.samples.len(), probed.lost), (3, 1));
    assert_eq!(lost, ["no answer in time"]);
}

#[tokio::test]
async fn the_pause_comes_before_every_request() {
    let server = TestServer::start(|_| ok_after(0)).await;
    let order = ProbeOrder { interval: 50 * MILLISECOND, ..order(3) };
    let started = std::time::Instant::now();
    probe(&server, &order).await.unwrap();
    assert!(started.elapsed() >= 200 * MILLISECOND, "{:?} for four requests", started.elapsed());
}

#[tokio::test]
async fn rubbish_and_silence_are_different_errors() {
    let rubbish = TestServer::start(|_| vec![send("SSH-2.0-OpenSSH\r\n\r\n"), ServerAction::Close]).await;
    let error = probe(&rubbish, &order(2)).await.unwrap_err();
    assert!(matches!(error, ProbeError::Protocol { .. }), "{error}");
    let silent = TestServer::start(|_| vec![ServerAction::Wait]).await;
    let error = probe(&silent, &ProbeOrder { timeout: 100 * MILLISECOND, ..order(2) }).await.unwrap_err();
    assert!(matches!(error, ProbeError::Timeout(_)), "{error}");
}

#[tokio::test]
async fn https_is_measured_with_an_extra_ca_and_refused_without() {
    let certificate = TestCertificate::new();
    let server = TestServer::tls(&certificate, |_: &SeenRequest| ok_after(0)).await;
    let target = Target::url(&format!("https://{}/", server.addr)).unwrap();
    let probed = measure(&certificate.trusting(), &target, &order(2), &mut |_| {}).await.unwrap();
    assert!(probed.phases.tls.is_some());
    let error = measure(&context(&["127.0.0.0/8"]), &target, &order(2), &mut |_| {}).await.unwrap_err();
    assert!(matches!(error, ProbeError::Tls { .. }), "{error}");
}

#[tokio::test]
async fn handshakes_are_samples_of_the_connect_metric() {
    let server = TestServer::start(|_| vec![ServerAction::Wait]).await;
    let probed = probe(&server, &ProbeOrder { metric: Metric::Connect, ..order(3) }).await.unwrap();
    assert_eq!(probed.samples.len(), 3);
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_bare_host_falls_back_to_http() {
    let server = TestServer::start(|_| ok_after(0)).await;
    let context = context(&["127.0.0.0/8"]);
    let settled = settle(&context, &server.addr.to_string(), Duration::ZERO, Duration::from_secs(1)).await.unwrap();
    assert_eq!(settled.to_string(), format!("http://{}", server.addr));
}

#[tokio::test]
async fn a_bare_host_that_speaks_tls_settles_at_https() {
    let certificate = TestCertificate::new();
    let server = TestServer::tls(&certificate, |_: &SeenRequest| ok_after(0)).await;
    let settled = settle(&certificate.trusting(), &server.addr.to_string(), Duration::ZERO, Duration::from_secs(5))
        .await
        .unwrap();
    assert_eq!(settled.to_string(), format!("https://{}", server.addr));
}

#[tokio::test]
async fn only_a_redirect_inside_the_domain_moves_the_site() {
    let last = TestServer::start(|_| ok_after(0)).await;
    let to = format!("http://{}/there", last.addr);
    let first = TestServer::start(move |_| redirect(&to)).await;
    let context = context(&["127.0.0.0/8"]);
    let name = format!("http://{}", first.addr);
    let settled = settle(&context, &name, Duration::ZERO, Duration::from_secs(5)).await.unwrap();
    assert_eq!(settled.to_string(), format!("http://{}", last.addr));

    let away = TestServer::start(|_| redirect("http://127.0.0.2:1/")).await;
    let name = format!("http://{}", away.addr);
    let settled = settle(&context, &name, Duration::ZERO, Duration::from_secs(5)).await.unwrap();
    assert_eq!(settled.to_string(), name);
}

#[tokio::test]
async fn private_addresses_are_refused_before_anything_is_sent() {
    let server = TestServer::start(|_| ok_after(0)).await;
    let context = context(&[]);
    for metric in [Metric::Ttfb, Metric::Connect, Metric::Icmp] {
        let target = Target::site(&format!("http://{}", server.addr)).unwrap();
        let error = measure(&context, &target, &ProbeOrder { metric, ..order(1) }, &mut |_| {}).await.unwrap_err();
        assert!(matches!(error, ProbeError::Guard(_)), "{error}");
    }
    assert!(server.requests().is_empty());
    let beacon = Target::beacon(&format!("http://{}/", server.addr)).unwrap();
    let error = measure(&context, &beacon, &order(1), &mut |_| {}).await.unwrap_err();
    assert!(matches!(error, ProbeError::Guard(_)), "{error}");
    assert!(server.requests().is_empty(), "an agent aims others at nothing that is private");
    let guard = context.guard.clone().with_beacons(vec!["127.0.0.0/8".parse().unwrap()]);
    let context = RequestContext { guard, ..context };
    assert!(measure(&context, &beacon, &order(1), &mut |_| {}).await.is_ok(), "unless their operators say so");
}

#[tokio::test]
async fn names_are_resolved_and_a_redirect_into_a_private_address_is_refused() {
    let names = TestNames::start(&NAMES).await;
    let context = names.context(&["127.0.0.0/8"]);
    let plain = TestServer::start(|_| ok_after(0)).await;
    let target = Target::site(&format!("http://site.example.com:{}", plain.addr.port())).unwrap();
    let probed = measure(&context, &target, &order(2), &mut |_| {}).await.unwrap();
    assert!(probed.phases.dns.is_some());
    assert!(plain.requests()[0].head.contains(&format!("host: site.example.com:{}", plain.addr.port())));

    let server = TestServer::start(|_| redirect("http://inside.example.com/")).await;
    let target = Target::site(&format!("http://site.example.com:{}", server.addr.port())).unwrap();
    let error = measure(&context, &target, &order(2), &mut |_| {}).await.unwrap_err();
    assert!(matches!(error, ProbeError::Guard(_)), "{error}");

    let error = measure(&context, &Target::site("absent.example.com").unwrap(), &order(1), &mut |_| {}).await;
    assert!(matches!(error.unwrap_err(), ProbeError::Dns(DnsError::NotFound(_))));
}

#[tokio::test]
async fn a_beacons_path_is_ignored() {
    let server = TestServer::start(|_| ok_after(0)).await;
    let beacon = Target::beacon(&format!("http://{}/delete?everything", server.addr)).unwrap();
    measure(&context(&["127.0.0.0/8"]), &beacon, &order(1), &mut |_| {}).await.unwrap();
    assert!(server.requests().iter().all(|seen| seen.head.starts_with("HEAD / HTTP/1.1\r\n")));
}

#[tokio::test]
async fn addresses_that_drop_packets_share_one_time_out() {
    // Once the queue of a listener that never accepts is full, the system drops further
    // connections.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = socket.listen(0).unwrap();
    let addr = full.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = tokio::time::timeout(100 * MILLISECOND, tokio::net::TcpStream::connect(addr)).await {
        queued.push(stream.unwrap());
    }
    let (context, timeout) = (context(&["127.0.0.0/8"]), 300 * MILLISECOND);
    let origin: Origin = format!("http://{addr}").parse().unwrap();
    let target = Target::settled(origin.clone());
    let mut endpoint = http::Endpoint::resolve(&context, &context.guard, origin, &target, timeout).await.unwrap();
    endpoint.addresses = vec![addr.ip(); 3];
    let started = std::time::Instant::now();
    assert!(endpoint.tcp().await.is_err());
    let took = started.elapsed();
    assert!(took >= 280 * MILLISECOND && took < 2 * timeout, "{took:?}");
    drop((full, queued));
}
