//! Sequences of faults that befall the fleets of other crawlers and schedulers, with the real
//! binaries: agents that are stopped, killed, flapping or behind a link that swallows all packets,
//! and a scheduler that is away in the middle of a batch.
//!
//! Other tests have the sequences with a killed agent (`end_to_end`) and a read-only database
//! (`database`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use landfall_lab::chaos::proxy::{DirectionRules, ProxyRules, StreamProxy};
use landfall_lab::cluster::Cluster;
use landfall_lab::cluster::process::until;
use landfall_lab::evidence::check::RunKind;
use nix::sys::signal::{Signal, kill};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::harness::{ENDED, PATIENCE, beside, count, small, submit, submit_list, violations};

const SITES: usize = 8;
const SLOW: [&str; 4] = ["--request-interval", "400ms", "--strategy", "random"];
/// Lifetime of a lease in these tests, with its grace.
const LEASE: Duration = Duration::from_millis(3_500);
/// Time that a request may be on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(700);
const LEASES_OF_FIRST: &str = "
    select count(*) from leases l join agents a on a.id = l.agent_id
    where l.state = 'active' and a.id = (select min(id) from agents)";
const OVERDUE: &str = "select count(*) from sessions where state = 'active' and expires_at < now()";

/// The index of the agent with the smallest number, which [`LEASES_OF_FIRST`] means.
async fn first(cluster: &Cluster) -> usize {
    let name: String =
        sqlx::query_scalar("select name from agents order by id limit 1").fetch_one(&cluster.pool).await.unwrap();
    cluster.agent_names().iter().position(|other| *other == name).unwrap()
}

/// A cluster of two agents in the middle of a batch, and the index of an agent that crawls.
async fn in_mid_batch() -> (Cluster, usize) {
    let mut cluster = small(2, SITES, 2).await;
    submit(&cluster, &SLOW).await;
    cluster.await_count("the first agent to crawl", LEASES_OF_FIRST, 1, PATIENCE).await.unwrap();
    let victim = first(&cluster).await;
    (cluster, victim)
}

async fn await_none(cluster: &Cluster, awaited: &str, query: &'static str) {
    let none = async || Ok((count(cluster, query).await == 0).then_some(()));
    until(awaited, PATIENCE, none).await.unwrap();
}

async fn await_a_good_end(mut cluster: Cluster) {
    cluster.await_count("every task to end", ENDED, SITES, PATIENCE).await.unwrap();
    let record = cluster.batch_record("autumn").await.unwrap();
    assert_eq!(violations(&cluster, &record, RunKind::Losses), Vec::<String>::new());
    cluster.stop().await.unwrap();
}

/// The sites that an agent requested pages of after a moment.
fn requested_after(cluster: &Cluster, agent: usize, moment: Instant) -> BTreeSet<usize> {
    let log = cluster.world.log.entries();
    let of_agent = log.iter().filter(|access| access.agent == Some(agent) && access.get && access.at > moment);
    of_agent.map(|access| access.site).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_slept_longer_than_its_leases_requests_nothing_of_them_after_it_wakes() {
    let _turn = beside().await;
    let (mut cluster, victim) = in_mid_batch().await;
    let held = "
        select s.name from leases l join tasks t on t.id = l.task_id join sites s on s.id = t.site_id
        where l.state = 'active' and l.agent_id = (select min(id) from agents)";
    let process = cluster.agent(victim).pid().unwrap();
    kill(process, Signal::SIGSTOP).unwrap();
    let held: Vec<String> = sqlx::query_scalar(held).fetch_all(&cluster.pool).await.unwrap();
    await_none(&cluster, "its leases to expire", LEASES_OF_FIRST).await;
    let other = "
        select count(*) from leases l where l.token > 1 and l.agent_id <> (select min(id) from agents)";
    cluster.await_count("the other agent to take a site", other, 1, PATIENCE).await.unwrap();
    let taken = "
        select s.name from leases l join tasks t on t.id = l.task_id join sites s on s.id = t.site_id
        where l.token > 1 and l.agent_id <> (select min(id) from agents)";
    let taken: Vec<String> = sqlx::query_scalar(taken).fetch_all(&cluster.pool).await.unwrap();
    let woken = Instant::now();
    kill(process, Signal::SIGCONT).unwrap();
    cluster.await_count("every task to end", ENDED, SITES, PATIENCE).await.unwrap();
    let names = cluster.site_names();
    let requested = requested_after(&cluster, victim, woken + ON_ITS_WAY);
    let stale: Vec<&String> = requested.iter().map(|site| &names[*site]).filter(|name| taken.contains(name)).collect();
    assert_eq!(stale, Vec::<&String>::new(), "held {held:?}, taken by the other {taken:?}");
    await_a_good_end(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_left_hold_nothing_and_get_nothing() {
    let _turn = beside().await;
    let (mut cluster, victim) = in_mid_batch().await;
    cluster.agent(victim).terminate();
    assert!(cluster.agent(victim).wait(PATIENCE).await.unwrap().is_some());
    await_none(&cluster, "the agent that was told to end to hold nothing", LEASES_OF_FIRST).await;
    cluster.kill_agent(1 - victim).await.unwrap();
    let killed = Instant::now();
    let active = "select count(*) from leases where state = 'active'";
    await_none(&cluster, "the killed agent to hold nothing", active).await;
    println!("the killed agent's leases ended after {:.1?}", killed.elapsed());
    let grants = "select count(*) from leases";
    let before = count(&cluster, grants).await;
    submit_list(&cluster, &cluster.site_names()[..2].join("\n"), "winter", &[]).await;
    let waits = "select count(*) from tasks t join batches b on b.id = t.batch_id where b.name = 'winter'";
    cluster_without_agents(&cluster, waits, 2).await;
    let listed = cluster.operate(&["agents", "list"]).await.unwrap();
    let away = listed.lines().filter(|line| line.contains(" away ")).count();
    assert_eq!((away, count(&cluster, grants).await), (2, before), "{listed}");
    for agent in 0..2 {
        cluster.restart_agent(agent).unwrap();
    }
    cluster.await_connected(2).await.unwrap();
    cluster.await_count("every task to end", ENDED, SITES + 2, PATIENCE).await.unwrap();
    cluster.stop().await.unwrap();
}

/// Waits for a count while no agent runs.
async fn cluster_without_agents(cluster: &Cluster, query: &'static str, wanted: i64) {
    let reached = async || Ok((count(cluster, query).await >= wanted).then_some(()));
    until("the count", PATIENCE, reached).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_cancelled_while_its_agent_is_dead_is_not_continued_when_the_agent_returns() {
    let _turn = beside().await;
    let (mut cluster, victim) = in_mid_batch().await;
    let held = "
        select s.name from leases l join tasks t on t.id = l.task_id join sites s on s.id = t.site_id
        where l.state = 'active' and l.agent_id = (select min(id) from agents) limit 1";
    cluster.kill_agent(victim).await.unwrap();
    let site: String = sqlx::query_scalar(held).fetch_one(&cluster.pool).await.unwrap();
    cluster.operate(&["sites", "cancel", &site, "--batch", "autumn"]).await.unwrap();
    let shown = cluster.operate(&["sites", "show", &site]).await.unwrap();
    assert!(shown.contains("cancelled"), "{shown}");
    let restarted = Instant::now();
    cluster.restart_agent(victim).unwrap();
    let ended = "select count(*) from tasks where state in ('done', 'failed', 'cancelled')";
    cluster.await_count("every task to end", ended, SITES, PATIENCE).await.unwrap();
    let index = cluster.site_names().iter().position(|name| *name == site).unwrap();
    let log = cluster.world.log.entries();
    let after: Vec<_> =
        log.iter().filter(|access| access.site == index && access.get && access.at > restarted).collect();
    assert!(after.is_empty(), "{after:?}");
    assert!(cluster.operate(&["sites", "show", &site]).await.unwrap().contains("cancelled"), "finally");
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_away_for_less_or_more_than_a_lease_loses_and_repeats_no_site() {
    let _turn = beside().await;
    let (mut cluster, _) = in_mid_batch().await;
    cluster.schedulers[0].process().kill().await.unwrap();
    cluster.schedulers[0].restart().unwrap();
    let sessions = "select count(*) from sessions where state = 'active' and expires_at > now() + interval '2 seconds'";
    cluster.await_count("both agents to be back", sessions, 2, PATIENCE).await.unwrap();
    assert_eq!(count(&cluster, "select count(*) from leases where state = 'expired'").await, 0, "too short to matter");

    cluster.schedulers[0].process().kill().await.unwrap();
    let overdue = async || Ok((count(&cluster, OVERDUE).await == 2).then_some(()));
    until("the sessions to run out", PATIENCE, overdue).await.unwrap();
    cluster.schedulers[0].restart().unwrap();
    await_a_good_end(cluster).await;
}

/// Kills and restarts the first agent, and waits each time until it is back or every task has ended.
async fn flap(cluster: &mut Cluster, victim: usize, times: i64) {
    for flap in 0..times {
        cluster.kill_agent(victim).await.unwrap();
        cluster.restart_agent(victim).unwrap();
        let connected = "select count(*) from sessions where agent_id = (select min(id) from agents)";
        let wanted = usize::try_from(flap + 2).unwrap();
        if count(cluster, ENDED).await < i64::try_from(SITES).unwrap() {
            cluster.await_count("the agent to come back", connected, wanted, PATIENCE).await.unwrap();
        }
    }
    cluster.await_count("every task to end", ENDED, SITES, PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_comes_and_goes_four_times_spoils_no_site() {
    let _turn = beside().await;
    let (mut cluster, victim) = in_mid_batch().await;
    // One crash fewer than `lease.max_crashes`, after which a site is poison.
    flap(&mut cluster, victim, 4).await;
    assert_eq!(count(&cluster, "select count(*) from tasks where state = 'failed'").await, 0);
    await_a_good_end(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_spoiled_by_an_agent_that_comes_and_goes_eight_times_names_the_agent() {
    let _turn = beside().await;
    let (mut cluster, victim) = in_mid_batch().await;
    flap(&mut cluster, victim, 8).await;
    let unnamed = "select count(*) from tasks where state = 'failed' and not (reason_kind = 'poison' and reason like
                   'poison: agent ' || (select name from agents order by id limit 1) || ' was lost%')";
    assert_eq!(count(&cluster, unnamed).await, 0);
    if count(&cluster, "select count(*) from tasks where state = 'failed'").await == 0 {
        eprintln!("void: no site was spoiled");
    }
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_link_swallows_everything_stops_at_its_deadline_and_returns_by_itself() {
    let _turn = beside().await;
    let mut cluster = small(2, SITES, 2).await;
    let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
    let proxy = StreamProxy::start(cluster.schedulers[0].address(), &tasks, &shutdown).await.unwrap();
    let victim = first(&cluster).await;
    cluster.kill_agent(victim).await.unwrap();
    cluster
        .configure_agent(victim, |config| {
            config.insert("scheduler".to_owned(), proxy.url().into());
            Ok(())
        })
        .unwrap();
    cluster.restart_agent(victim).unwrap();
    submit(&cluster, &SLOW).await;
    cluster.await_count("the first agent to crawl", LEASES_OF_FIRST, 1, PATIENCE).await.unwrap();
    let held = DirectionRules { held: true, ..DirectionRules::default() };
    proxy.rule(ProxyRules { up: held, down: held });
    let swallowed = Instant::now();
    await_none(&cluster, "its leases to expire", LEASES_OF_FIRST).await;
    let late = requested_after(&cluster, victim, swallowed + LEASE + ON_ITS_WAY);
    assert!(late.is_empty(), "{late:?}");
    proxy.rule(ProxyRules::default());
    let healed = Instant::now();
    cluster.await_connected(2).await.unwrap();
    println!("the session was back after {:.1?}", healed.elapsed());
    await_a_good_end(cluster).await;
    shutdown.cancel();
}
