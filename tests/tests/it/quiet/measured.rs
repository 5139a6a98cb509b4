//! Compares the measurements of real agents, and the choices that depend on them, with the
//! scenario's round trips.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use landfall_lab::cluster::Cluster;
use landfall_lab::evidence::batch_record::BatchRecord;
use landfall_lab::evidence::check::RunKind;
use landfall_lab::evidence::figures;
use landfall_lab::world::scenario::SMALL;
use landfall_lab::world::site_servers::Access;
use landfall_lab::world::{Grade, tun};

use crate::harness::{
    PATIENCE, PROBE_INTERVAL, alone, cluster, cluster_on, small_scenario, submit, untrue, violations,
};

const CAPACITY: u32 = 8;
/// Minimum number of measurements in the rootless grade, where six agents measure three machines.
const FEWEST_PAIRS: usize = 18;
/// Minimum number of measurements in the tun grade, where six agents with four landmarks measure
/// twelve machines.
const FEWEST_TUN_PAIRS: usize = 21;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_agents_crawl_24_sites_each_exactly_once() {
    let _turn = alone().await;
    figures::in_one_run(six_agents_crawl_24_sites).await.unwrap();
}

/// Crawls, but does not assert that measurements are accurate. Returns what is wrong with the
/// measurements.
async fn six_agents_crawl_24_sites() -> Vec<String> {
    let mut cluster = cluster(small_scenario(SMALL, 6, 24), CAPACITY, "").await;
    cluster.await_mesh(PATIENCE).await.unwrap();
    let elected = cluster.operate(&["landmarks", "elect", "--count", "4", "--format", "json"]).await.unwrap();
    let said = submit(&cluster, &["--request-interval", "100ms", "--watch"]).await;
    assert!(said.contains("24"), "{said}");
    let record = cluster.batch_record("autumn").await.unwrap();
    assert_eq!(violations(&cluster, &record, RunKind::Calm), Vec::<String>::new());
    assert_eq!(record.landmarks.len(), 4, "{elected}");
    assert!(record.tasks.iter().all(|task| task.strategy.as_deref() == Some("gnp-top3")), "{:?}", record.tasks);
    assert!(record.tasks.iter().all(|task| task.fallback.is_none()), "{:?}", record.tasks);
    let probers: BTreeSet<&str> = record.site_measurements.iter().map(|one| one.prober.as_str()).collect();
    assert_eq!(probers, record.landmarks.iter().map(String::as_str).collect(), "only landmarks measure sites");

    let again = submit(&cluster, &["--request-interval", "100ms"]).await;
    assert!(again.contains("nothing changed"), "{again}");
    let report = cluster.operate(&["report", "assignments", "--batch", "autumn", "--format", "csv"]).await.unwrap();
    assert_eq!(report.lines().count(), 25, "a head and a row a site: {report}");
    let grown = cluster.operate(&["report", "throughput", "--batch", "autumn", "--slices", "4"]).await.unwrap();
    assert!(grown.starts_with("batch autumn: 24 of 24 sites crawled, in "), "{grown}");
    let bytes: u64 = record.tasks.iter().map(|task| u64::try_from(task.bytes).unwrap()).sum();
    let grown = cluster.operate(&["report", "throughput", "--batch", "autumn", "--format", "csv"]).await.unwrap();
    let last: Vec<&str> = grown.lines().last().unwrap().split(',').collect();
    assert_eq!((grown.lines().count(), last[1], last[3]), (21, "24", bytes.to_string().as_str()), "{grown}");
    plans_are_made(&cluster, &record).await;
    let violations = untrue(&cluster, &record, FEWEST_PAIRS);
    cluster.stop().await.unwrap();
    violations
}

/// Asserts that `landfall plan` predicts the effects of a changed fleet.
async fn plans_are_made(cluster: &Cluster, record: &BatchRecord) {
    let leaver = &cluster.agent_names()[0];
    let add = format!("city=Chengdu,carrier=Telecom,near={}", record.tasks[0].site);
    let words = ["plan", "--add", &add, "--remove", leaver, "--suggest", "2", "--strategy", "gnp-top1", "--format"];
    let text = cluster.operate(&[&words[..], &["text"]].concat()).await.unwrap();
    assert!(text.contains("chengdu-telecom") && text.contains("places tried, of all sites"), "{text}");
    let json = cluster.operate(&[&words[..], &["json"]].concat()).await.unwrap();
    let plan: serde_json::Value = serde_json::from_str(&json).unwrap();
    let counted = plan["sites"].as_u64().unwrap() + plan["sites_in_several_places"].as_u64().unwrap();
    assert_eq!((counted, plan["sites_elsewhere"].as_u64()), (24, Some(0)), "{text}");
    assert_eq!(plan["sites_of_known_size"], plan["sites"], "all were crawled: {text}");
    let agents = plan["agents"].as_array().unwrap();
    let there = |when: &str| agents.iter().filter(|agent| agent[when].is_object()).count();
    assert_eq!((agents.len(), there("before"), there("after")), (7, 6, 6), "{text}");
    assert!(plan["before"]["mean_ms"].as_f64().unwrap() > 0.0 && plan["after"]["makespan_ms"].as_f64().unwrap() > 0.0);
    let unknown = cluster.operate(&["plan", "--remove", "nobody"]).await.unwrap_err().to_string();
    assert!(unknown.contains("remove: no agent is called nobody"), "{unknown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmers_measure_politely_and_their_sites_go_to_agents_no_farther_than_predicted_ones() {
    let _turn = alone().await;
    let mut cluster = cluster(small_scenario(SMALL, 6, 12), CAPACITY, "[confirm]\nagents = 2\n").await;
    cluster.await_mesh(PATIENCE).await.unwrap();
    cluster.operate(&["landmarks", "elect", "--count", "3"]).await.unwrap();
    submit(&cluster, &["--request-interval", "100ms", "--strategy", "gnp-confirmed", "--watch"]).await;
    let record = cluster.batch_record("autumn").await.unwrap();
    // The sites' logs show whether all probes of a site, including those of confirmers, keep the
    // interval.
    assert_eq!(violations(&cluster, &record, RunKind::Calm), Vec::<String>::new());
    assert!(record.tasks.iter().all(|task| task.strategy.as_deref() == Some("gnp-confirmed")), "{:?}", record.tasks);
    assert!(record.tasks.iter().all(|task| task.fallback.is_none()), "{:?}", record.tasks);
    let by_others = |site: &str| {
        let rows = record.site_measurements.iter().filter(|one| one.target == site);
        rows.filter(|one| !record.landmarks.contains(&one.prober)).count()
    };
    assert!(record.tasks.iter().all(|task| by_others(&task.site) <= 2), "{:?}", record.site_measurements);
    assert!(record.tasks.iter().any(|task| by_others(&task.site) > 0), "{:?}", record.site_measurements);

    let (confirmed, predicted) = confirmed_and_predicted_ms(&cluster, &record);
    println!("mean round trip to the crawler: {confirmed:.1} ms confirmed, {predicted:.1} ms as predicted");
    assert!(confirmed <= predicted * 1.05, "{confirmed} ms confirmed, {predicted} ms as predicted");
    let shown = cluster.operate(&["sites", "show", &record.tasks[0].site]).await.unwrap();
    assert!(shown.contains(" probes"), "{shown}");
    cluster.stop().await.unwrap();
}

/// Two mean true round trips over all sites: to the chosen agent, and to the agent that `gnp-top1`
/// would have chosen. `gnp-top1` uses the measurements of landmarks and the map.
fn confirmed_and_predicted_ms(cluster: &Cluster, record: &BatchRecord) -> (f64, f64) {
    let (scenario, names, map) = (cluster.world.scenario(), cluster.agent_names(), record.embedding.as_ref().unwrap());
    let (mut confirmed, mut predicted) = (0.0, 0.0);
    for (site, name) in cluster.site_names().iter().enumerate() {
        let true_ms = |agent: &str| {
            let index = names.iter().position(|known| known == agent).unwrap();
            scenario.paths[index][site].rtt_ms
        };
        let expected = |agent: &String| {
            let by_landmark = record.site_measurements.iter().find(|one| one.prober == *agent && one.target == *name);
            match by_landmark.filter(|_| record.landmarks.contains(agent)).and_then(|one| one.rtt_us) {
                Some(micros) => Duration::from_micros(micros.unsigned_abs()),
                None => map.embedding.predict(&map.sites[name], &map.agents[agent]).unwrap().as_duration(),
            }
        };
        predicted += true_ms(names.iter().min_by_key(|agent| expected(agent)).unwrap());
        let task = record.tasks.iter().find(|task| task.site == *name).unwrap();
        confirmed += true_ms(task.agent.as_deref().unwrap());
    }
    let sites = f64::from(u32::try_from(record.tasks.len()).unwrap());
    (confirmed / sites, predicted / sites)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sites_on_one_machine_share_measurements() {
    let _turn = alone().await;
    figures::in_one_run(sites_share_measurements).await.unwrap();
}

/// Crawls, but does not assert that measurements are accurate. Returns what is wrong with the
/// measurements.
async fn sites_share_measurements() -> Vec<String> {
    const AGENTS: usize = 6;
    const SITES: usize = 18;
    let shared = SMALL.replace("[sites]", "[sites]\nper_machine = 6");
    let cluster = cluster(small_scenario(&shared, AGENTS, SITES), CAPACITY, "").await;
    let began = Instant::now();
    submit(&cluster, &["--request-interval", "100ms", "--watch"]).await;
    println!("{SITES} sites measured by {AGENTS} agents and crawled in {:.1?}", began.elapsed());
    let mut record = cluster.batch_record("autumn").await.unwrap();
    assert_eq!(violations(&cluster, &record, RunKind::Calm), Vec::<String>::new());
    assert_eq!(record.site_measurements.len(), AGENTS * SITES, "everyone knows the way to every site");

    let log = cluster.world.log.entries();
    // In this test, only probers send HEAD requests.
    let probes: Vec<_> = log.iter().filter(|access| !access.get).collect();
    machines_are_probed_one_order_after_the_other(&cluster, &probes);
    // Without sharing, each agent would send one warm-up request and at least three samples to each
    // site.
    let naive = AGENTS * SITES * 4;
    println!("{} probes where {naive} would be sent without sharing", probes.len());
    // On a busy machine, samples vary, so agents take more samples. The expected number of probes
    // is a sixth of `naive`, and the limit is half of `naive`.
    assert!(probes.len() * 2 <= naive, "{} of {naive}", probes.len());
    // Each agent measures one of the six sites of a machine. It also measures one in fifty of the
    // other sites as a check, and all other sites if a check fails.
    let own = own_measurements(&cluster).await;
    println!("{} of {} measurements are the site's own", own.len(), AGENTS * SITES);
    assert!(own.len() * 10 <= AGENTS * SITES * 3, "{} of {}", own.len(), AGENTS * SITES);
    let counted: i64 = sqlx::query_scalar("select sum(requests)::bigint from site_measurements")
        .fetch_one(&cluster.pool)
        .await
        .unwrap();
    assert_eq!(usize::try_from(counted).ok(), Some(probes.len()), "the agents' count is the servers'");

    shows_what_measuring_cost(&cluster, &record, &probes).await;
    // Shared measurements are removed, because otherwise a wrong measurement would count once for
    // each site that shares it.
    record.site_measurements.retain(|one| own.contains_key(&(one.prober.clone(), one.target.clone())));
    let violations = untrue(&cluster, &record, FEWEST_PAIRS);
    cluster.stop().await.unwrap();
    violations
}

/// The measurements that are not shared, in microseconds, by prober and site. Asserts that each
/// shared measurement equals its original.
async fn own_measurements(cluster: &Cluster) -> BTreeMap<(String, String), Option<i64>> {
    let all: Vec<(String, String, Option<String>, Option<i64>)> = sqlx::query_as(
        "select a.name, s.name, m.shared_from, m.rtt_us from site_measurements m \
         join agents a on a.id = m.prober_id join sites s on s.id = m.site_id",
    )
    .fetch_all(&cluster.pool)
    .await
    .unwrap();
    let (own, copies): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, _, from, _)| from.is_none());
    let own: BTreeMap<_, _> = own.into_iter().map(|(prober, site, _, rtt_us)| ((prober, site), rtt_us)).collect();
    for (prober, site, from, rtt_us) in copies {
        let from = (prober, from.unwrap());
        assert_eq!(own.get(&from), Some(&rtt_us), "{site} has another measurement than {from:?}");
    }
    own
}

/// Asserts that `sites show` prints the number of requests that the site received, and the number
/// of shared measurements.
async fn shows_what_measuring_cost(cluster: &Cluster, record: &BatchRecord, probes: &[&Access]) {
    for (site, name) in cluster.site_names().iter().enumerate() {
        let shown = cluster.operate(&["sites", "show", name, "--wide"]).await.unwrap();
        let seen = probes.iter().filter(|probe| probe.site == site).count();
        assert!(shown.contains(&format!("; {seen} requests so far")), "{seen}: {shown}");
        let shared: i64 = sqlx::query_scalar(
            "select count(m.shared_from) from site_measurements m join sites s on s.id = m.site_id where s.name = $1",
        )
        .bind(name)
        .fetch_one(&cluster.pool)
        .await
        .unwrap();
        let all = record.site_measurements.iter().filter(|one| one.target == *name).count();
        let said = format!("; {shared} of {all} measurements are shared from another site");
        assert_eq!(shown.contains(&said), shared > 0, "{shown}");
        if site == 0 {
            println!("{shown}");
        }
    }
}

/// Asserts that two successive probes of a machine, for different sites or by different agents, are
/// at least an interval apart. The times are from the sites' logs.
fn machines_are_probed_one_order_after_the_other(cluster: &Cluster, probes: &[&Access]) {
    let sites = &cluster.world.scenario().sites;
    let mut newest: BTreeMap<usize, &Access> = BTreeMap::new();
    let (mut of_others, mut least) = (0, Duration::MAX);
    for probe in probes {
        let Some(former) = newest.insert(sites[probe.site].machine, probe) else { continue };
        if (former.site, former.agent) != (probe.site, probe.agent) {
            let gap = probe.at.saturating_duration_since(former.at);
            (of_others, least) = (of_others + 1, least.min(gap));
        }
    }
    println!("{of_others} times a machine was probed for another order than before, {least:?} apart at least");
    let machines = cluster.world.scenario().machines();
    assert!(of_others + machines >= sites.len(), "every site was asked at least once: {of_others}");
    assert!(least >= PROBE_INTERVAL.mul_f64(0.95), "two orders' probes of a machine {least:?} apart");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_agents_measure_and_crawl_twelve_sites_over_real_packets() {
    let _turn = alone().await;
    match tun::missing() {
        Some(reason) => eprintln!("skipped: {reason}"),
        None => figures::in_one_run(measure_and_crawl).await.unwrap(),
    }
}

/// Crawls, but does not assert that measurements are accurate. Returns what is wrong with the
/// measurements.
async fn measure_and_crawl() -> Vec<String> {
    let mut cluster = cluster_on(Grade::Tun, small_scenario(SMALL, 6, 12), CAPACITY, "").await;
    cluster.await_mesh(PATIENCE).await.unwrap();
    cluster.operate(&["landmarks", "elect", "--count", "4"]).await.unwrap();
    submit(&cluster, &["--request-interval", "100ms", "--watch"]).await;
    let record = cluster.batch_record("autumn").await.unwrap();
    assert_eq!(violations(&cluster, &record, RunKind::Calm), Vec::<String>::new());
    let log = cluster.world.log.entries();
    assert!(log.iter().all(|access| access.agent.is_some()), "every request came from an agent's own address");
    let lateness = cluster.world.lateness();
    let [p50, p99] = [0.5, 0.99].map(|share| lateness.quantile(share));
    println!("late by p50 {p50:?}, p99 {p99:?}; {:?}", cluster.world.network().unwrap().traffic());
    let violations = untrue(&cluster, &record, FEWEST_TUN_PAIRS);
    cluster.stop().await.unwrap();
    violations
}
