//! Checks in the sites' logs that schedulers and agents keep the rate limits.

use std::time::{Duration, Instant};

use landfall_lab::cluster::Cluster;
use landfall_lab::evidence::check::{FullestWindow, RequestLimit, most_at_once};
use landfall_lab::world::scenario::{Layout, PAPER, Scenario};
use landfall_lab::world::site_servers::Access;
use landfall_scheduler::model::quota_and_address_budget::permitted_crawls;

use crate::harness::{ENDED, PATIENCE, beside, cluster, count, submit_list};

/// Maximum difference between the transit times of two requests. The maximum is large, because
/// other programs on the machine may delay the arrival of a request.
const SLACK: Duration = Duration::from_millis(200);
/// The number of leases that ended without a request, because the address of the site permitted no
/// further crawl.
const IN_VAIN: &str = "select count(*) from leases where state = 'released' and address is null";

/// A scenario with agents of the paper's layout and small sites. `addresses` contains the number of
/// sites at each address.
fn crowded(agents: usize, addresses: &[usize]) -> Scenario {
    let layout = Layout::parse(PAPER, "paper.toml").unwrap();
    let mut scenario = layout.scenario(Some(agents), Some(addresses.iter().sum())).unwrap();
    let machines = addresses.iter().enumerate().flat_map(|(machine, sites)| std::iter::repeat_n(machine, *sites));
    scenario.sites.iter_mut().zip(machines).for_each(|(site, machine)| site.machine = machine);
    scenario.web.mean_pages = 3.0;
    scenario.web.max_pages = 4;
    scenario.web.mean_bytes = 1024.0;
    scenario.web.slow_share = 0.0;
    scenario
}

/// Submits all sites with the strategy `random`, and waits until all are crawled.
async fn crawl_all(cluster: &mut Cluster, policy: &[&str]) {
    submit_list(cluster, &cluster.world.site_list(), "b", policy).await;
    let sites = cluster.world.scenario().sites.len();
    cluster.await_count("every task to end", ENDED, sites, PATIENCE).await.unwrap();
    assert_eq!(count(cluster, "select count(*) from tasks where state = 'done'").await, i64::try_from(sites).unwrap());
    assert_eq!(count(cluster, "select count(*) from tasks where held").await, 0, "nothing waits for ever");
}

struct Address {
    sites: u32,
    fullest: FullestWindow,
    at_once: usize,
}

/// Evaluates the requests to each address. `at_once` takes the number of sites at an address, and
/// returns the permitted number of concurrent crawls at this address.
fn addresses(cluster: &Cluster, log: &[Access], limit: RequestLimit, at_once: impl Fn(u32) -> u32) -> Vec<Address> {
    let scenario = cluster.world.scenario();
    let mut found = Vec::new();
    for machine in 0..scenario.machines() {
        let there: Vec<usize> = scenario.sites_of(machine).collect();
        let arrivals = arrivals(log, |access| there.contains(&access.site));
        let sites = u32::try_from(there.len()).unwrap();
        let spans: Vec<(Instant, Instant)> = there.iter().map(|site| span(log, *site)).collect();
        let fullest = limit.fullest(&arrivals, at_once(sites)).unwrap();
        found.push(Address { sites, fullest, at_once: most_at_once(&spans) });
    }
    found
}

/// The arrival times, in ascending order, of the requests that `kind` selects.
fn arrivals(log: &[Access], kind: impl Fn(&Access) -> bool) -> Vec<Instant> {
    let mut arrivals: Vec<Instant> = log.iter().filter(|access| kind(access)).map(|access| access.at).collect();
    arrivals.sort();
    arrivals
}

/// The arrival times of the first and the last request to a site.
fn span(log: &[Access], site: usize) -> (Instant, Instant) {
    let arrivals = arrivals(log, |access| access.site == site);
    (*arrivals.first().unwrap(), *arrivals.last().unwrap())
}

/// Asserts that no site is crawled by two agents at the same time, or faster than permitted.
fn sites_are_crawled_within_the_limit(cluster: &Cluster, limit: RequestLimit) {
    let log = cluster.world.log.entries();
    let mut most: f64 = 0.0;
    for site in 0..cluster.world.scenario().sites.len() {
        let fullest = limit.fullest(&arrivals(&log, |access| access.site == site), 1).unwrap();
        assert!(fullest.share() <= 1.0, "site {site}: {fullest:?}");
        most = most.max(fullest.share());
    }
    // If the origin is unknown, the crawl begins with a HEAD request, which counts as a request.
    let heads = log.iter().filter(|access| !access.get).count();
    println!("{} requests, {heads} of them HEAD; of one site {:.0} % of what was promised", log.len(), 100.0 * most);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_agents_keep_the_limits_of_every_host_and_address() {
    let _turn = beside().await;
    let scenario = crowded(30, &[1, 1, 2, 4, 5, 9, 13, 25]);
    let mut cluster = cluster(scenario, 4, "").await;
    let began = Instant::now();
    crawl_all(&mut cluster, &["--request-interval", "400ms"]).await;
    println!("crawled in {:.1?}, {} times a turn had not come", began.elapsed(), count(&cluster, IN_VAIN).await);
    assert!(count(&cluster, IN_VAIN).await > 0, "no address was ever full: this shows nothing");
    let limit = RequestLimit { interval: Duration::from_millis(400), slack: SLACK };
    sites_are_crawled_within_the_limit(&cluster, limit);
    let log = cluster.world.log.entries();
    for Address { sites, fullest, at_once } in addresses(&cluster, &log, limit, |sites| permitted_crawls(sites, 8)) {
        let borne = permitted_crawls(sites, 8);
        println!("{sites:2} sites, {at_once} of {borne} at once, {fullest:?} {:.2}", fullest.share());
        assert!(
            at_once <= usize::try_from(borne).unwrap(),
            "{sites} sites: {at_once} crawls at once, {borne} are borne"
        );
        assert!(fullest.share() <= 1.0, "{sites} sites: {fullest:?}");
    }
    // With a limit of one concurrent crawl, the check must find violations in the same log.
    let strict = addresses(&cluster, &log, limit, |_| 1);
    assert!(strict.iter().any(|address| address.fullest.share() > 1.0 && address.at_once > 1));
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_allows_one_crawl_is_crawled_site_by_site() {
    let _turn = beside().await;
    let mut cluster = cluster(crowded(6, &[2, 2, 2]), 4, "[politeness]\ncrawls_at_address = 1\n").await;
    let policy = ["--request-interval", "400ms", "--max-pages", "2"];
    crawl_all(&mut cluster, &policy).await;
    assert!(count(&cluster, IN_VAIN).await > 0, "no address was ever full: this shows nothing");
    let limit = RequestLimit { interval: Duration::from_millis(400), slack: SLACK };
    let (first, in_vain) = (cluster.world.log.entries(), count(&cluster, IN_VAIN).await);
    // In the second batch, the sites' origins are known, so a crawl begins with robots.txt as soon
    // as the previous crawl at the address has ended.
    submit_list(&cluster, &cluster.world.site_list(), "again", &policy).await;
    cluster.await_count("every task to end again", ENDED, 12, PATIENCE).await.unwrap();
    assert_eq!(count(&cluster, IN_VAIN).await, in_vain, "where a site is, and that its address is full, is known now");
    sites_are_crawled_within_the_limit(&cluster, limit);
    let log = cluster.world.log.entries();
    for (crawls, log) in [("first", &first[..]), ("second", &log[first.len()..])] {
        for Address { sites, fullest, at_once } in addresses(&cluster, log, limit, |_| 1) {
            println!("{crawls} crawls of {sites} sites: {fullest:?} {:.2}", fullest.share());
            assert_eq!(at_once, 1, "{sites} sites");
            assert!(fullest.share() <= 1.0, "{crawls} crawls of {sites} sites: {fullest:?}");
        }
    }
    cluster.stop().await.unwrap();
}
