//! The whole of Landfall in small: real binaries, real sockets, an emulated network, and the database asked afterwards.
//!
//! Intervals and lease times are shorter than an operator would set them, so that the tests take seconds; the rules they
//! bound stay the same. One cluster at a time: two would make each other late.

#![expect(clippy::unwrap_used, reason = "a test stops where it breaks")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use landfall_lab::check::{self, Evidence, Expect};
use landfall_lab::cluster::{Cluster, HURRIED, Options};
use landfall_lab::figures::Figures;
use landfall_lab::layout::{Layout, SMALL};
use landfall_lab::process::until;
use landfall_lab::sites::Access;
use landfall_lab::truth;
use landfall_lab::witness::Facts;
use landfall_lab::world::World;
use tokio::sync::Mutex;

/// Probes of one site are this far apart; an operator's are a second apart.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
const MAX_DEPTH: u32 = 8;
/// A share of fewer measurements would say nothing: six agents have so many of three machines.
const FEWEST_PAIRS: usize = 18;
const MESH_PATIENCE: Duration = Duration::from_secs(60);
const LEASE_PATIENCE: Duration = Duration::from_secs(60);
const BATCH_PATIENCE: Duration = Duration::from_secs(90);

/// Held by the test whose cluster runs.
static TURN: Mutex<()> = Mutex::const_new(());

async fn cluster(agents: usize, sites: usize) -> Cluster {
    cluster_of(SMALL, agents, sites, "").await
}

/// A cluster in this layout, whose scheduler is told more.
async fn cluster_of(layout: &str, agents: usize, sites: usize, more: &str) -> Cluster {
    let layout = Layout::parse(layout, "small.toml").unwrap();
    let world = World::start(layout.scenario(Some(agents), Some(sites)).unwrap()).await.unwrap();
    let options = Options { scheduler: format!("{HURRIED}{more}"), capacity: 8, logs: None, sharing: 0 };
    Cluster::start(world, &options).await.unwrap()
}

async fn submit(cluster: &Cluster, list: &Path, more: &[&str]) -> String {
    let list = list.to_str().unwrap();
    let depth = MAX_DEPTH.to_string();
    let mut words = vec!["sites", "submit", list, "--batch", "autumn", "--max-depth", &depth];
    words.extend(more);
    cluster.operate(&words).await.unwrap()
}

/// What the database and the sites' logs say is wrong.
fn offences(cluster: &Cluster, facts: &Facts, expect: Expect) -> Vec<String> {
    let (sites, agents, log) = (cluster.site_names(), cluster.agent_names(), cluster.world.log.entries());
    let evidence = Evidence {
        facts,
        sites: &sites,
        agents: &agents,
        webs: &cluster.world.webs,
        log: &log,
        max_depth: MAX_DEPTH,
        probe_interval: PROBE_INTERVAL,
    };
    let broken = check::all(&evidence, expect).into_iter().filter(|check| !check.holds());
    broken.map(|check| check.lines()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_agents_crawl_24_sites_each_exactly_once() {
    let _turn = TURN.lock().await;
    truth::in_one_run(six_agents_crawl_24_sites).await.unwrap();
}

/// Checks everything but how true the measurements are, and says what is to be said against those.
async fn six_agents_crawl_24_sites() -> Vec<String> {
    let mut cluster = cluster(6, 24).await;
    cluster.await_mesh(MESH_PATIENCE).await.unwrap();
    let elected = cluster.operate(&["landmarks", "elect", "--count", "4", "--format", "json"]).await.unwrap();
    let list = cluster.write_site_list().unwrap();
    let said = submit(&cluster, &list, &["--request-interval", "100ms", "--watch"]).await;
    assert!(said.contains("24"), "{said}");
    let facts = cluster.facts("autumn").await.unwrap();
    assert_eq!(offences(&cluster, &facts, Expect::Calm), Vec::<String>::new());
    assert_eq!(facts.landmarks.len(), 4, "{elected}");
    assert!(facts.tasks.iter().all(|task| task.strategy.as_deref() == Some("gnp-top3")), "{:?}", facts.tasks);
    assert!(facts.tasks.iter().all(|task| task.fallback.is_none()), "{:?}", facts.tasks);
    let probers: BTreeSet<&str> = facts.site_measurements.iter().map(|one| one.prober.as_str()).collect();
    assert_eq!(probers, facts.landmarks.iter().map(String::as_str).collect(), "only landmarks measure sites");

    let again = submit(&cluster, &list, &["--request-interval", "100ms"]).await;
    assert!(again.contains("nothing changed"), "{again}");
    let report = cluster.operate(&["report", "assignments", "--batch", "autumn", "--format", "csv"]).await.unwrap();
    assert_eq!(report.lines().count(), 25, "a head and a row a site: {report}");
    let grown = cluster.operate(&["report", "throughput", "--batch", "autumn", "--slices", "4"]).await.unwrap();
    assert!(grown.starts_with("batch autumn: 24 of 24 sites crawled, in "), "{grown}");
    let bytes: u64 = facts.tasks.iter().map(|task| u64::try_from(task.bytes).unwrap()).sum();
    let grown = cluster.operate(&["report", "throughput", "--batch", "autumn", "--format", "csv"]).await.unwrap();
    let last: Vec<&str> = grown.lines().last().unwrap().split(',').collect();
    assert_eq!((grown.lines().count(), last[1], last[3]), (21, "24", bytes.to_string().as_str()), "{grown}");
    plans_are_made(&cluster, &facts).await;
    let offences = untrue(&cluster, &facts);
    cluster.stop().await.unwrap();
    offences
}

/// What another fleet would come to is said of the sites that lie in the map.
async fn plans_are_made(cluster: &Cluster, facts: &Facts) {
    let leaver = &cluster.agent_names()[0];
    let add = format!("city=Chengdu,isp=Telecom,near={}", facts.tasks[0].site);
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

/// What is to be said against the measurements of mesh and sites, where the machine was quiet enough to tell.
fn untrue(cluster: &Cluster, facts: &Facts) -> Vec<String> {
    let figures = Figures::of(facts, cluster.world.scenario(), &cluster.site_names());
    figures.untrue(FEWEST_PAIRS, cluster.world.void().as_deref()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmers_measure_politely_and_their_sites_go_to_agents_no_farther_than_predicted_ones() {
    let _turn = TURN.lock().await;
    let mut cluster = cluster_of(SMALL, 6, 12, "[confirm]\nagents = 2\n").await;
    cluster.await_mesh(MESH_PATIENCE).await.unwrap();
    cluster.operate(&["landmarks", "elect", "--count", "3"]).await.unwrap();
    let list = cluster.write_site_list().unwrap();
    submit(&cluster, &list, &["--request-interval", "100ms", "--strategy", "gnp-confirmed", "--watch"]).await;
    let facts = cluster.facts("autumn").await.unwrap();
    // The sites' own logs, confirmers included: no two probes of a site closer than the interval.
    assert_eq!(offences(&cluster, &facts, Expect::Calm), Vec::<String>::new());
    assert!(facts.tasks.iter().all(|task| task.strategy.as_deref() == Some("gnp-confirmed")), "{:?}", facts.tasks);
    assert!(facts.tasks.iter().all(|task| task.fallback.is_none()), "{:?}", facts.tasks);
    let by_others = |site: &str| {
        let rows = facts.site_measurements.iter().filter(|one| one.target == site);
        rows.filter(|one| !facts.landmarks.contains(&one.prober)).count()
    };
    assert!(facts.tasks.iter().all(|task| by_others(&task.site) <= 2), "{:?}", facts.site_measurements);
    assert!(facts.tasks.iter().any(|task| by_others(&task.site) > 0), "{:?}", facts.site_measurements);

    let (confirmed, predicted) = confirmed_and_predicted_ms(&cluster, &facts);
    println!("mean round trip to the crawler: {confirmed:.1} ms confirmed, {predicted:.1} ms as predicted");
    assert!(confirmed <= predicted * 1.05, "{confirmed} ms confirmed, {predicted} ms as predicted");
    let shown = cluster.operate(&["sites", "show", &facts.tasks[0].site]).await.unwrap();
    assert!(shown.contains(" probes"), "{shown}");
    cluster.stop().await.unwrap();
}

/// Mean true round trips over all sites: to the agent that was chosen, and to the one that `gnp-top1` would have
/// chosen by what landmarks measured and the map predicts.
fn confirmed_and_predicted_ms(cluster: &Cluster, facts: &Facts) -> (f64, f64) {
    let (scenario, names, map) = (cluster.world.scenario(), cluster.agent_names(), facts.embedding.as_ref().unwrap());
    let (mut confirmed, mut predicted) = (0.0, 0.0);
    for (site, name) in cluster.site_names().iter().enumerate() {
        let true_ms = |agent: &str| {
            let index = names.iter().position(|known| known == agent).unwrap();
            scenario.paths[index][site].rtt_ms
        };
        let expected = |agent: &String| {
            let by_landmark = facts.site_measurements.iter().find(|one| one.prober == *agent && one.target == *name);
            match by_landmark.filter(|_| facts.landmarks.contains(agent)).and_then(|one| one.rtt_us) {
                Some(micros) => Duration::from_micros(micros.unsigned_abs()),
                None => map.embedding.predict(&map.sites[name], &map.agents[agent]).unwrap().as_duration(),
            }
        };
        predicted += true_ms(names.iter().min_by_key(|agent| expected(agent)).unwrap());
        let task = facts.tasks.iter().find(|task| task.site == *name).unwrap();
        confirmed += true_ms(task.agent.as_deref().unwrap());
    }
    let sites = f64::from(u32::try_from(facts.tasks.len()).unwrap());
    (confirmed / sites, predicted / sites)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sites_on_one_machine_share_measurements() {
    let _turn = TURN.lock().await;
    truth::in_one_run(sites_share_measurements).await.unwrap();
}

/// Checks everything but how true the measurements are, and says what is to be said against those.
async fn sites_share_measurements() -> Vec<String> {
    const AGENTS: usize = 6;
    const SITES: usize = 24;
    let shared = SMALL.replace("[sites]", "[sites]\nper_machine = 8");
    let cluster = cluster_of(&shared, AGENTS, SITES, "").await;
    let list = cluster.write_site_list().unwrap();
    let began = Instant::now();
    submit(&cluster, &list, &["--request-interval", "100ms", "--watch"]).await;
    println!("{SITES} sites measured by {AGENTS} agents and crawled in {:.1?}", began.elapsed());
    let mut facts = cluster.facts("autumn").await.unwrap();
    assert_eq!(offences(&cluster, &facts, Expect::Calm), Vec::<String>::new());
    assert_eq!(facts.site_measurements.len(), AGENTS * SITES, "everyone knows the way to every site");

    let log = cluster.world.log.entries();
    // Every page is served to HEAD: whoever measures asks with nothing else.
    let probes: Vec<_> = log.iter().filter(|access| !access.get).collect();
    machines_are_probed_one_order_after_the_other(&cluster, &probes);
    // One request that warms the connection up, and three samples at least, from everyone for every site.
    let naive = AGENTS * SITES * 4;
    println!("{} probes where {naive} would be sent without sharing", probes.len());
    // A busy machine makes samples restless, and then more of them are taken: half is far from the eighth that is shared.
    assert!(probes.len() * 2 <= naive, "{} of {naive}", probes.len());
    // Of eight sites on a machine one is measured by everyone; of the others one in fifty, and those where that disagreed.
    let own = own_measurements(&cluster).await;
    println!("{} of {} measurements are the site's own", own.len(), AGENTS * SITES);
    assert!(own.len() * 10 <= AGENTS * SITES * 3, "{} of {}", own.len(), AGENTS * SITES);
    let counted: i64 = sqlx::query_scalar("select sum(requests)::bigint from site_measurements")
        .fetch_one(&cluster.pool)
        .await
        .unwrap();
    assert_eq!(usize::try_from(counted).ok(), Some(probes.len()), "the agents' count is the servers'");

    shows_what_measuring_cost(&cluster, &facts, &probes).await;
    // The others are copies, and one that is wrong would count as often as it was copied.
    facts.site_measurements.retain(|one| own.contains_key(&(one.prober.clone(), one.target.clone())));
    let offences = untrue(&cluster, &facts);
    cluster.stop().await.unwrap();
    offences
}

/// The sites' own measurements, in microseconds, by prober and site. All others equal the one that they are said to be from.
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

/// What `sites show` says of a site's requests and of whose measurements it has is what its server saw.
async fn shows_what_measuring_cost(cluster: &Cluster, facts: &Facts, probes: &[&Access]) {
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
        let all = facts.site_measurements.iter().filter(|one| one.target == *name).count();
        let said = format!("; {shared} of {all} measurements are another site's");
        assert_eq!(shown.contains(&said), shared > 0, "{shown}");
        if site == 0 {
            println!("{shown}");
        }
    }
}

/// By the web servers' own logs: whichever sites and agents they are about, two probes of a machine are an interval apart.
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
async fn a_batch_waits_for_the_agents_it_asks_for_and_its_choices_are_explained() {
    let _turn = TURN.lock().await;
    let mut cluster = cluster(3, 6).await;
    let list = cluster.write_site_list().unwrap();
    let names = std::fs::read_to_string(&list).unwrap();
    let site = names.lines().next().unwrap().to_owned();
    std::fs::write(&list, names.replacen(&site, &format!("{site},45.75,126.5"), 1)).unwrap();
    submit(&cluster, &list, &["--request-interval", "100ms", "--tag", "chosen"]).await;
    cluster
        .await_count(
            "sites that nobody may crawl",
            "select count(*) from task_holds where cause = 'unmet'",
            6,
            BATCH_PATIENCE,
        )
        .await
        .unwrap();
    let explained = cluster.operate(&["explain", &site, "--wide"]).await.unwrap();
    assert!(explained.contains("position: 45.75, 126.5 (list)"), "{explained}");
    assert!(explained.contains("no agent meets the constraints: 3 of 3 lack the tag 'chosen'"), "{explained}");
    let shown = cluster.operate(&["batches", "show", "autumn", "--wide"]).await.unwrap();
    assert!(shown.contains("agents     tagged chosen"), "{shown}");

    let agent = cluster.agent_names().remove(1);
    cluster.operate(&["agents", "tag", &agent, "--add", "chosen"]).await.unwrap();
    cluster.operate(&["sites", "watch", "--batch", "autumn"]).await.unwrap();
    let facts = cluster.facts("autumn").await.unwrap();
    assert!(facts.tasks.iter().all(|task| task.agent.as_ref() == Some(&agent)), "{:?}", facts.tasks);
    let explained = cluster.operate(&["explain", &site, "--batch", "autumn", "--wide"]).await.unwrap();
    for said in ["was chosen because ", "excluded: ", ": each lacks the tag 'chosen'"] {
        assert!(explained.contains(said), "{said}: {explained}");
    }
    let json = cluster.operate(&["explain", &site, "--format", "json"]).await.unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let choice = &json["tasks"][0]["choices"][0];
    assert_eq!(choice["agent"], agent.as_str());
    assert!(
        choice["candidates"][0]["load_level"].is_i64() && choice["candidates"][0]["measured_ms"].is_f64(),
        "{choice}"
    );
    let unknown = cluster.operate(&["explain", "nowhere.test"]).await.unwrap_err().to_string();
    assert!(unknown.contains("no site is known as 'nowhere.test'"), "{unknown}");
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_agent_alone_is_a_fleet() {
    let _turn = TURN.lock().await;
    let cluster = cluster(1, 5).await;
    let list = cluster.write_site_list().unwrap();
    submit(&cluster, &list, &["--request-interval", "100ms", "--watch"]).await;
    let facts = cluster.facts("autumn").await.unwrap();
    assert_eq!(offences(&cluster, &facts, Expect::Calm), Vec::<String>::new());
    assert_eq!(facts.landmarks, Vec::<String>::new());
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sites_of_a_killed_agent_are_finished_by_others_exactly_once() {
    let _turn = TURN.lock().await;
    let mut cluster = cluster(3, 9).await;
    let list = cluster.write_site_list().unwrap();
    // Slow enough that the agent dies in the middle of its crawls.
    submit(&cluster, &list, &["--request-interval", "500ms", "--strategy", "random"]).await;
    let pool = cluster.pool.clone();
    let victim: String = until("a lease", LEASE_PATIENCE, async || {
        let query = "select a.name from leases l join agents a on a.id = l.agent_id where l.state = 'active' limit 1";
        Ok(sqlx::query_scalar(query).fetch_optional(&pool).await?)
    })
    .await
    .unwrap();
    let index = cluster.agent_names().iter().position(|name| *name == victim).unwrap();
    cluster.kill_agent(index).await.unwrap();

    let ended = "select count(*) from tasks where state in ('done', 'failed')";
    cluster.await_count("every task to end", ended, 9, BATCH_PATIENCE).await.unwrap();
    let facts = cluster.facts("autumn").await.unwrap();
    assert_eq!(offences(&cluster, &facts, Expect::Losses), Vec::<String>::new());
    let moved: Vec<_> = facts.tasks.iter().filter(|task| task.leases > 1).collect();
    assert!(!moved.is_empty(), "the killed agent held a lease: {:?}", facts.tasks);
    assert!(moved.iter().all(|task| task.crawler.as_ref() != Some(&victim)), "{moved:?}");
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_drained_in_mid_batch_finishes_what_it_began_and_gets_nothing_more() {
    let _turn = TURN.lock().await;
    let mut cluster = cluster(3, 18).await;
    let list = cluster.write_site_list().unwrap();
    submit(&cluster, &list, &["--request-interval", "300ms", "--strategy", "random"]).await;
    let pool = cluster.pool.clone();
    let drained: String = until("a lease", LEASE_PATIENCE, async || {
        let query = "select a.name from leases l join agents a on a.id = l.agent_id where l.state = 'active' limit 1";
        Ok(sqlx::query_scalar(query).fetch_optional(&pool).await?)
    })
    .await
    .unwrap();
    let said = cluster.operate(&["agents", "drain", &drained, "--wait"]).await.unwrap();
    assert!(said.contains(&format!("{drained} is drained")) || said.contains("holds no lease"), "{said}");
    let after = sqlx::query_scalar::<_, i64>(
        "select count(*) from leases l join agents a on a.id = l.agent_id where a.name = $1 and l.granted_at > a.draining_since",
    );
    let listed = cluster.operate(&["agents", "list"]).await.unwrap();
    let line = listed.lines().find(|line| line.contains(&drained)).unwrap();
    assert!(line.contains("drained"), "{listed}");

    let ended = "select count(*) from tasks where state in ('done', 'failed')";
    cluster.await_count("every task to end", ended, 18, BATCH_PATIENCE).await.unwrap();
    let facts = cluster.facts("autumn").await.unwrap();
    assert_eq!(offences(&cluster, &facts, Expect::Losses), Vec::<String>::new());
    assert!(facts.tasks.iter().all(|task| task.leases == 1), "nothing was cut or crawled twice: {:?}", facts.tasks);
    assert!(facts.tasks.iter().any(|task| task.crawler.as_ref() == Some(&drained)), "it finished what it had");
    assert_eq!(after.bind(&drained).fetch_one(&pool).await.unwrap(), 0, "nothing was granted to it any more");

    what_is_said_of_it(&cluster, &drained, &facts).await;
    let said = cluster.operate(&["agents", "resume", &drained]).await.unwrap();
    assert_eq!(said, format!("{drained} takes work again\n"));
    let said = cluster.operate(&["agents", "remove", &drained]).await.unwrap();
    assert!(said.starts_with(&format!("{drained} is removed")), "{said}");
    let log = cluster.logs().join(format!("{drained}.log"));
    let told = until("the agent to be told that it was removed", LEASE_PATIENCE, async || {
        let log = std::fs::read_to_string(&log)?;
        Ok(log.contains("was removed by the operator").then_some(()))
    });
    told.await.unwrap();
    let active = "select count(*) from sessions where state = 'active'";
    assert_eq!(sqlx::query_scalar::<_, i64>(active).fetch_one(&pool).await.unwrap(), 2, "it did not come back");
    cluster.stop().await.unwrap();
}

/// An operator who looks afterwards finds the drain, and every step of a site, in what the commands print.
async fn what_is_said_of_it(cluster: &Cluster, drained: &str, facts: &Facts) {
    let shown = cluster.operate(&["agents", "show", drained]).await.unwrap();
    assert!(shown.contains("drained") && shown.contains("session    active, incarnation 1"), "{shown}");
    let of_agent = cluster.operate(&["events", "--agent", drained, "--newest", "1000", "--wide"]).await.unwrap();
    assert!(of_agent.contains(&format!(" agent {drained} draining")), "{of_agent}");
    let done = facts.tasks.iter().find(|task| task.crawler.as_deref() == Some(drained)).unwrap();
    let of_site = cluster.operate(&["events", "--site", &done.site, "--format", "json"]).await.unwrap();
    let path: Vec<String> = of_site
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|event| event["noun"] == "task")
        .map(|event| event["what"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(path, ["located", "assigned", "leased", "done"], "{of_site}");
    let batch = cluster.operate(&["batches", "show", "autumn", "--wide"]).await.unwrap();
    assert!(batch.contains("18 complete"), "{batch}");
    println!("{shown}\n{of_site}\n{batch}\n{}", cluster.operate(&["batches", "list"]).await.unwrap());
}
