//! Follows each site from its submission to its outcome, in the traces that a collector receives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use landfall_lab::cluster::process::until;
use landfall_lab::cluster::scheduler::collector;
use landfall_lab::cluster::{Cluster, ClusterOptions, HURRIED};
use landfall_lab::world::scenario::SMALL;
use landfall_lab::world::{Grade, World};
use serde_json::Value;

use crate::harness::{ENDED, FEW_SAMPLES, PATIENCE, beside, database, small_scenario, submit};

const SITES: usize = 4;

type Received = Arc<Mutex<Vec<Value>>>;

/// Starts a collector on loopback, which receives traces until the test ends.
async fn collect() -> (SocketAddr, Received) {
    let received = Received::default();
    let taken = Arc::clone(&received);
    let address = collector(move |head, body| {
        assert_eq!(head.uri.path(), "/v1/traces");
        assert_eq!(head.headers["content-type"], "application/json");
        taken.lock().unwrap().push(serde_json::from_slice(body).unwrap());
    });
    (address.await.unwrap(), received)
}

/// The spans of each trace, each with the name of the service that sent it.
fn traces(received: &Received) -> BTreeMap<String, Vec<(String, Value)>> {
    let mut traces: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
    for resource in received.lock().unwrap().iter().flat_map(|body| body["resourceSpans"].as_array().unwrap().clone()) {
        let service = attribute(&resource["resource"], "service.name").unwrap();
        for span in resource["scopeSpans"][0]["spans"].as_array().unwrap() {
            traces
                .entry(span["traceId"].as_str().unwrap().to_owned())
                .or_default()
                .push((service.clone(), span.clone()));
        }
    }
    traces
}

fn attribute(of: &Value, key: &str) -> Option<String> {
    let attributes = of["attributes"].as_array().unwrap();
    let value = &attributes.iter().find(|attribute| attribute["key"] == key)?["value"];
    value["stringValue"].as_str().or(value["intValue"].as_str()).map(str::to_owned)
}

fn nanos(span: &Value, key: &str) -> u64 {
    span[key].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn one_trace_follows_a_site_over_scheduler_and_agent() {
    let _beside = beside().await;
    let (address, received) = collect().await;
    let world = World::start_on(Grade::Rootless, small_scenario(SMALL, 1, SITES)).await.unwrap();
    let scheduler = format!("otlp = 'http://{address}'\n{HURRIED}{FEW_SAMPLES}");
    let options = ClusterOptions { scheduler, capacity: 4, logs: None, database: database() };
    let mut cluster = Cluster::start(world, &options).await.unwrap();
    cluster.environment.insert(0, vec![("LANDFALL_OTLP".to_owned(), format!("http://{address}"))]);
    cluster.kill_agent(0).await.unwrap();
    cluster.restart_agent(0).unwrap();
    let sessions = "select count(*) from sessions";
    cluster.await_count("the agent to connect again", sessions, 2, PATIENCE).await.unwrap();

    submit(&cluster, &["--request-interval", "100ms"]).await;
    cluster.await_count("the sites to end", ENDED, SITES, PATIENCE).await.unwrap();
    let whole = |spans: &[(String, Value)]| {
        let names: BTreeSet<&str> = spans.iter().map(|(_, span)| span["name"].as_str().unwrap()).collect();
        ["site", "submitted", "leased", "crawl"].iter().all(|name| names.contains(name))
    };
    let all = async || Ok((traces(&received).values().filter(|spans| whole(spans)).count() == SITES).then_some(()));
    until("every site's trace", PATIENCE, all).await.unwrap();

    let mut sites = BTreeSet::new();
    for spans in traces(&received).values() {
        let named = |name: &str| spans.iter().filter(|(_, span)| span["name"] == name).collect::<Vec<_>>();
        let [(service, site)] = named("site")[..] else { panic!("{spans:?}") };
        assert!(service == "landfall" && site["parentSpanId"].is_null(), "{site}");
        let site_name = attribute(site, "landfall.site").unwrap();
        let [(service, crawl)] = named("crawl")[..] else { panic!("{spans:?}") };
        let [(_, leased)] = named("leased")[..] else { panic!("{spans:?}") };
        assert_eq!((service.as_str(), &crawl["parentSpanId"]), ("landfall-agent", &leased["spanId"]));
        assert_eq!(attribute(crawl, "landfall.site").unwrap(), site_name);
        let requests: u32 = attribute(crawl, "landfall.requests").unwrap().parse().unwrap();
        let pages: u32 = attribute(crawl, "landfall.pages").unwrap().parse().unwrap();
        assert!(requests >= pages, "{crawl}");
        for (service, span) in spans.iter().filter(|(_, span)| span["name"] != "site") {
            let inside = nanos(span, "startTimeUnixNano") >= nanos(site, "startTimeUnixNano");
            assert!(inside && nanos(span, "endTimeUnixNano") <= nanos(site, "endTimeUnixNano"), "{service}: {spans:?}");
            assert!(!span["parentSpanId"].is_null(), "{span}");
        }
        sites.insert(site_name);
    }
    assert_eq!(sites, cluster.site_names().into_iter().collect());
    cluster.stop().await.unwrap();
}
