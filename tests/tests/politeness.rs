//! Politeness and fairness over real schedulers and agents, by what the sites saw.
//!
//! Intervals are shorter than an operator would set them, so that the tests take seconds. One cluster at a time: two would make each
//! other late.

#![expect(clippy::unwrap_used, reason = "a test stops where it breaks")]

use std::time::{Duration, Instant};

use landfall_lab::cluster::{Cluster, HURRIED, Options};
use landfall_lab::layout::{Layout, PAPER, SMALL};
use landfall_lab::odd_sites::{OddSite, Oddity};
use landfall_lab::pace::{Fullest, Promise, most_at_once};
use landfall_lab::process::until;
use landfall_lab::scenario::Scenario;
use landfall_lab::sites::Access;
use landfall_lab::world::World;
use landfall_scheduler::store::addresses::bears;
use tokio::sync::Mutex;

const PATIENCE: Duration = Duration::from_secs(120);
/// Requests are counted as they arrive. On a machine that others use too, one may be so much longer under way than the next.
const SLACK: Duration = Duration::from_millis(200);
const ENDED: &str = "select count(*) from tasks where state in ('done', 'failed')";
/// Leases that ended without a request, because their address bore no further crawl.
const IN_VAIN: &str = "select count(*) from leases where state = 'released' and address is null";

/// Held by the test whose cluster runs.
static TURN: Mutex<()> = Mutex::const_new(());

/// The paper's agents, and at each address so many sites of a few small pages.
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

async fn cluster(scenario: Scenario, capacity: u32, more: &str) -> Cluster {
    let world = World::start(scenario).await.unwrap();
    let options = Options { scheduler: format!("{HURRIED}{more}"), capacity, logs: None, sharing: 0 };
    Cluster::start(world, &options).await.unwrap()
}

async fn count(cluster: &Cluster, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(&cluster.pool).await.unwrap()
}

/// Submits all sites of the world for agents drawn at random, and waits until they have ended.
async fn crawl_all(cluster: &mut Cluster, policy: &[&str]) {
    submit(cluster, &cluster.world.site_list(), "b", policy).await;
    let sites = cluster.world.scenario().sites.len();
    cluster.await_count("every task to end", ENDED, sites, PATIENCE).await.unwrap();
    assert_eq!(count(cluster, "select count(*) from tasks where state = 'done'").await, i64::try_from(sites).unwrap());
    assert_eq!(count(cluster, "select count(*) from tasks where held").await, 0, "nothing waits for ever");
}

/// What the sites of one address saw.
struct Address {
    sites: u32,
    fullest: Fullest,
    at_once: usize,
}

/// By address, what the sites saw, where each bears so many crawls as `at_once` says of its number of sites.
fn addresses(cluster: &Cluster, log: &[Access], promise: Promise, at_once: impl Fn(u32) -> u32) -> Vec<Address> {
    let scenario = cluster.world.scenario();
    let mut found = Vec::new();
    for machine in 0..scenario.machines() {
        let there: Vec<usize> = scenario.sites_of(machine).collect();
        let arrivals = arrivals(log, |access| there.contains(&access.site));
        let sites = u32::try_from(there.len()).unwrap();
        let spans: Vec<(Instant, Instant)> = there.iter().map(|site| span(log, *site)).collect();
        let fullest = promise.fullest(&arrivals, at_once(sites)).unwrap();
        found.push(Address { sites, fullest, at_once: most_at_once(&spans) });
    }
    found
}

/// When the requests of a kind arrived, in order.
fn arrivals(log: &[Access], kind: impl Fn(&Access) -> bool) -> Vec<Instant> {
    let mut arrivals: Vec<Instant> = log.iter().filter(|access| kind(access)).map(|access| access.at).collect();
    arrivals.sort();
    arrivals
}

/// From the first request of a site to its last.
fn span(log: &[Access], site: usize) -> (Instant, Instant) {
    let arrivals = arrivals(log, |access| access.site == site);
    (*arrivals.first().unwrap(), *arrivals.last().unwrap())
}

/// No site is asked by two agents, or more often than was said.
fn sites_are_asked_as_was_promised(cluster: &Cluster, promise: Promise) {
    let log = cluster.world.log.entries();
    let mut most: f64 = 0.0;
    for site in 0..cluster.world.scenario().sites.len() {
        let fullest = promise.fullest(&arrivals(&log, |access| access.site == site), 1).unwrap();
        assert!(fullest.share() <= 1.0, "site {site}: {fullest:?}");
        most = most.max(fullest.share());
    }
    // Where an origin is not known, the crawl begins with a HEAD, which counts as the other requests.
    let heads = log.iter().filter(|access| !access.get).count();
    println!("{} requests, {heads} of them HEAD; of one site {:.0} % of what was promised", log.len(), 100.0 * most);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_agents_ask_no_host_and_no_address_more_often_than_was_promised() {
    let _turn = TURN.lock().await;
    let scenario = crowded(30, &[1, 1, 2, 4, 5, 9, 13, 25]);
    let mut cluster = cluster(scenario, 4, "").await;
    let began = Instant::now();
    crawl_all(&mut cluster, &["--request-interval", "500ms"]).await;
    println!("crawled in {:.1?}, {} times a turn had not come", began.elapsed(), count(&cluster, IN_VAIN).await);
    assert!(count(&cluster, IN_VAIN).await > 0, "no address was ever full: this shows nothing");
    let promise = Promise { interval: Duration::from_millis(500), slack: SLACK };
    sites_are_asked_as_was_promised(&cluster, promise);
    let log = cluster.world.log.entries();
    for Address { sites, fullest, at_once } in addresses(&cluster, &log, promise, |sites| bears(sites, 8)) {
        let borne = bears(sites, 8);
        println!("{sites:2} sites, {at_once} of {borne} at once, {fullest:?} {:.2}", fullest.share());
        assert!(
            at_once <= usize::try_from(borne).unwrap(),
            "{sites} sites: {at_once} crawls at once, {borne} are borne"
        );
        assert!(fullest.share() <= 1.0, "{sites} sites: {fullest:?}");
    }
    // The same log would not pass, had one crawl at a time been promised.
    let strict = addresses(&cluster, &log, promise, |_| 1);
    assert!(strict.iter().any(|address| address.fullest.share() > 1.0 && address.at_once > 1));
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_an_address_bears_one_crawl_its_sites_are_crawled_one_after_the_other() {
    let _turn = TURN.lock().await;
    let mut cluster = cluster(crowded(6, &[3, 3, 3]), 4, "[politeness]\ncrawls_at_address = 1\n").await;
    let policy = ["--request-interval", "1s", "--max-pages", "2"];
    crawl_all(&mut cluster, &policy).await;
    assert!(count(&cluster, IN_VAIN).await > 0, "no address was ever full: this shows nothing");
    let promise = Promise { interval: Duration::from_secs(1), slack: SLACK };
    let (first, in_vain) = (cluster.world.log.entries(), count(&cluster, IN_VAIN).await);
    // Whose origin is known is asked for robots.txt as soon as its turn has come, which is as soon as another's crawl has ended.
    submit(&cluster, &cluster.world.site_list(), "again", &policy).await;
    cluster.await_count("every task to end again", ENDED, 18, PATIENCE).await.unwrap();
    assert_eq!(count(&cluster, IN_VAIN).await, in_vain, "where a site is, and that its address is full, is known now");
    sites_are_asked_as_was_promised(&cluster, promise);
    let log = cluster.world.log.entries();
    for (crawls, log) in [("first", &first[..]), ("second", &log[first.len()..])] {
        for Address { sites, fullest, at_once } in addresses(&cluster, log, promise, |_| 1) {
            println!("{crawls} crawls of {sites} sites: {fullest:?} {:.2}", fullest.share());
            assert_eq!(at_once, 1, "{sites} sites");
            assert!(fullest.share() <= 1.0, "{crawls} crawls of {sites} sites: {fullest:?}");
        }
    }
    cluster.stop().await.unwrap();
}

/// One agent, and a world whose own sites are as few as can be.
async fn one_agent(sites: usize, slots: u32) -> Cluster {
    let layout = Layout::parse(SMALL, "small.toml").unwrap();
    cluster(layout.scenario(Some(1), Some(sites)).unwrap(), slots, "").await
}

/// An odd site on an address of its own.
fn odd(cluster: &Cluster, number: usize, oddity: Oddity) -> OddSite {
    // Behind the addresses of the world's own sites.
    let machine = cluster.world.scenario().machines() + number;
    OddSite::start(cluster.world.wan.lane().site(machine), oddity).unwrap()
}

async fn submit(cluster: &Cluster, sites: &str, batch: &str, more: &[&str]) {
    let list = cluster.folder().join(format!("{batch}.txt"));
    std::fs::write(&list, sites).unwrap();
    let words = ["sites", "submit", list.to_str().unwrap(), "--batch", batch, "--strategy", "random"];
    cluster.operate(&[&words[..], more].concat()).await.unwrap();
}

/// Waits until `sites show` says this of a site.
async fn await_said(cluster: &Cluster, site: &str, said: &str) {
    let shown = until(said, PATIENCE, async || {
        Ok(cluster.operate(&["sites", "show", site, "--wide"]).await?.contains(said).then_some(()))
    });
    shown.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tar_pit_and_a_site_that_turns_crawls_away_cost_the_others_nothing() {
    let _turn = TURN.lock().await;
    let mut cluster = one_agent(8, 2).await;
    let pit = odd(&cluster, 0, Oddity::TarPit);
    let away = odd(&cluster, 1, Oddity::TurnsAway(60));
    let both = format!("{}\n{}\n", pit.name(), away.name());
    submit(&cluster, &both, "odd", &["--request-interval", "20ms"]).await;
    // Both slots are taken, one of them for good; the other one is free again as soon as its site asks to be left alone.
    await_said(&cluster, &away.name(), "its site asked to be left alone").await;
    let in_pit = until("the tar pit to be entered", PATIENCE, async || {
        Ok(pit.asked().iter().any(|asked| asked.what == "GET /").then_some(()))
    });
    in_pit.await.unwrap();
    let (before, began) = (away.asked().len(), Instant::now());
    let others = cluster.world.site_list();
    submit(&cluster, &others, "others", &["--request-interval", "20ms"]).await;
    cluster
        .await_count("the others to end", "select count(*) from tasks where state = 'done'", 8, PATIENCE)
        .await
        .unwrap();
    println!("8 sites beside a tar pit crawled in {:.1?} by the one slot left", began.elapsed());
    let shown = cluster.operate(&["sites", "show", &pit.name(), "--wide"]).await.unwrap();
    assert!(shown.contains("batch odd round 1: leased"), "the tar pit's crawl is under way all the while: {shown}");
    let shown = cluster.operate(&["sites", "show", &away.name(), "--wide"]).await.unwrap();
    assert!(shown.contains("batch odd round 1: located"), "its pause is not over: {shown}");
    let entered = pit.asked().iter().filter(|asked| asked.what.starts_with("GET /")).count();
    assert_eq!(entered, 2, "robots.txt and the start page: {:?}", pit.asked());
    assert_eq!(away.asked().len(), before, "it is left alone: {:?}", away.asked());
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_was_broken_off_is_an_alarm_until_a_person_reopens_it() {
    let _turn = TURN.lock().await;
    let mut cluster = one_agent(1, 2).await;
    // So many good pages that fifty failures are less than a tenth of a minute's requests: those would be a pause.
    let site = odd(&cluster, 0, Oddity::Breaks(600));
    let (name, quick) = (site.name(), ["--request-interval", "1ms", "--max-pages", "2000"]);
    assert_eq!(cluster.operate(&["sites", "alarms"]).await.unwrap(), "no site is broken off\n");
    submit(&cluster, &name, "first", &quick).await;
    cluster.await_count("the breaker to open", ENDED, 1, PATIENCE).await.unwrap();
    let broken = "select count(*) from outcomes o join tasks t on t.id = o.task_id
                  where o.kind = 'blocked' and t.reason_kind = 'breaker' and o.pages = 600";
    assert_eq!(
        count(&cluster, broken).await,
        1,
        "{}",
        cluster.operate(&["sites", "show", &name, "--wide"]).await.unwrap()
    );
    let asked = site.asked().len();

    submit(&cluster, &name, "second", &quick).await;
    await_said(
        &cluster,
        &name,
        "requests to its site failed without end: `landfall sites reopen` lets it be crawled again",
    )
    .await;
    let alarms = cluster.operate(&["sites", "alarms", "--format", "json"]).await.unwrap();
    let alarm: serde_json::Value = serde_json::from_str(&alarms).unwrap();
    assert_eq!((alarm[0]["site"].as_str(), alarm[0]["waiting"].as_u64()), (Some(name.as_str()), Some(1)), "{alarms}");
    println!("{}", cluster.operate(&["sites", "alarms"]).await.unwrap());
    assert_eq!(site.asked().len(), asked, "nobody asks it anything");

    let refused = cluster.landfall().args(["sites", "reopen", "www.nowhere.test"]).output().await.unwrap();
    println!("{}", String::from_utf8_lossy(&refused.stderr));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    site.mend();
    let said = cluster.operate(&["sites", "reopen", &name]).await.unwrap();
    assert_eq!(said, "1 site reopened, 1 task no longer waiting\n");
    cluster.await_count("the second crawl to end", ENDED, 2, PATIENCE).await.unwrap();
    let complete = "select count(*) from outcomes where kind = 'complete' and pages = 4";
    assert_eq!(
        count(&cluster, complete).await,
        1,
        "{}",
        cluster.operate(&["sites", "show", &name, "--wide"]).await.unwrap()
    );
    assert_eq!(cluster.operate(&["sites", "alarms"]).await.unwrap(), "no site is broken off\n");
    let said = cluster.operate(&["sites", "reopen", &name]).await.unwrap();
    assert_eq!(said, "nothing changed: none of them was broken off\n");
    cluster.stop().await.unwrap();
}
