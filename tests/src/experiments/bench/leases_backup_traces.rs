//! Measures how many sites a scheduler accepts per second, how many leases it grants, how many
//! crawls it completes, how long a free slot waits for a lease, and how long a restart takes with a
//! million open tasks. Also measures a backup of a million sites, and the cost of traces.
//!
//! Of a backup, the duration, the effect on the rate of grants, and the duration of a restore are
//! measured. The cost of traces is the rate of grants while the scheduler sends spans to a
//! collector, as a share of the rate without a collector. Without a collector, the scheduler makes
//! no spans.
//!
//! Everything except the agents is real and runs on this machine: the scheduler's binary in the
//! folder of the lab's binary (build it with `--release`), a Postgres with fsync, and gRPC streams.
//! The agents crawl nothing, and can report outcomes immediately. The printed load average includes
//! other work on the machine.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use landfall_proto::v1::site_service_client::SiteServiceClient;
use tokio::process::Command;

use super::bench_scheduler::{self, BenchScheduler};
use super::line::{Line, median};
use super::simulated_agent::{Mode, PATIENCE, SimulatedAgent, await_grants};
use super::submits::submit;
use crate::cluster::Binaries;
use crate::cluster::process::until;
use crate::cluster::scheduler::collector;
use crate::machine::load_average;

const AGENTS: usize = 20;
const LEASES_CAPACITY: u32 = 4_000;
/// Number of open tasks at the start.
const OPEN: u64 = 1_000_000;
/// Number of sites per submission.
const SUBMITTED: usize = 20_000;
const SUBMISSIONS: usize = 5;
/// Duration of each measurement that is not limited by a number of tasks.
const LEASES_SPELL: Duration = Duration::from_secs(10);
/// Numbers of slots that become free per second, over all agents, while the wait of free slots for
/// leases is measured. The wait has a target only for the larger number.
const FREED_A_SECOND: [u32; 2] = [500, 1_000];

pub(super) async fn leases() -> anyhow::Result<Vec<Line>> {
    let bench = BenchScheduler::start(AGENTS).await?;
    let mut lines = vec![Line::plain("load average at the start", load_average()?)];
    let mut scheduler = bench.serve().await?;
    let idle = scheduler.0.resident_memory()?;
    lines.push(submissions(&bench, &scheduler.1).await?);
    bench.end(&mut scheduler.0).await?;
    bench_scheduler::seed_assigned(&bench.pool, OPEN).await?;

    let started = Instant::now();
    let granted = Arc::new(AtomicU64::new(0));
    let (mut process, url) = bench.serve().await?;
    let mut agents = Vec::new();
    for credential in &bench.credentials {
        agents.push(SimulatedAgent::start(&url, credential, LEASES_CAPACITY, Arc::clone(&granted)).await?);
    }
    await_grants(&granted, 1).await?;
    let restarted = started.elapsed().as_secs_f64();
    lines.push(Line::at_most("restart with 1,000,000 open tasks to the first grant, s", restarted, 5.0));
    let began = Instant::now();
    let before = granted.load(Ordering::Relaxed);
    let all = u64::from(LEASES_CAPACITY) * u64::try_from(AGENTS)?;
    await_grants(&granted, all).await?;
    lines.push(Line::at_least("durable grants a second, alone", rate(all - before, began), 10_000.0));

    // Each agent has [`LEASES_CAPACITY`] leases. If its slots are reduced to one, an agent gets no new
    // lease until the outcomes of all its leases are recorded, so this phase measures completions
    // alone.
    bench_scheduler::seed_slots(&bench.pool, 1).await?;
    // Wait until all sessions have read the new number of slots. Sessions read the number every
    // second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let began = Instant::now();
    agents.iter().for_each(|agent| agent.set_mode(Mode::Answer));
    let answered = |agents: &[SimulatedAgent]| agents.iter().map(SimulatedAgent::acknowledged).sum::<u64>();
    until("every outcome to be acknowledged", PATIENCE, async || Ok((answered(&agents) >= all).then_some(()))).await?;
    lines.push(Line::at_least("durable completions a second, alone", rate(all, began), 10_000.0));

    bench_scheduler::seed_slots(&bench.pool, LEASES_CAPACITY).await?;
    await_grants(&granted, all + 1).await?;
    let (grants, completions, began) = (granted.load(Ordering::Relaxed), answered(&agents), Instant::now());
    tokio::time::sleep(LEASES_SPELL).await;
    let (granted_now, completed_now) = (granted.load(Ordering::Relaxed), answered(&agents));
    lines.push(Line::plain("both at once: grants a second", format!("{:.0}", rate(granted_now - grants, began))));
    lines.push(Line::plain(
        "both at once: completions a second",
        format!("{:.0}", rate(completed_now - completions, began)),
    ));
    for freed in FREED_A_SECOND {
        agents.iter().for_each(|agent| agent.set_mode(Mode::Pause));
        // Freed slots are filled again. Wait until no outcome is in transit, and no slot is free.
        let full = || {
            let answered = answered(&agents);
            answered == agents.iter().map(SimulatedAgent::sent).sum::<u64>()
                && granted.load(Ordering::Relaxed) == answered + all
        };
        until("every slot to be taken", PATIENCE, async || Ok(full().then_some(()))).await?;
        lines.extend(latency(&agents, freed).await?);
    }

    let resident = process.resident_memory()?;
    lines.push(Line::plain("scheduler's memory, idle, MB", format!("{:.0}", idle / 1e6)));
    lines.push(Line::plain("scheduler's memory at the end, MB", format!("{:.0}", resident / 1e6)));
    let open = int(OPEN)?;
    lines.push(Line::plain("scheduler's memory a task, bytes", format!("{:.0}", (resident - idle).max(0.0) / open)));
    // The agents' counts are read before the stored counts. The scheduler may store more in the
    // meantime, so the stored counts may be larger, but must not be smaller.
    let told = (i64::try_from(granted.load(Ordering::Relaxed))?, i64::try_from(answered(&agents))?);
    let stored = bench_scheduler::count_stored(&bench.pool).await?;
    ensure!(stored.0 >= told.0 && stored.1 >= told.1, "(grants, outcomes): told of {told:?}, stored {stored:?}");
    drop(agents);
    bench.end(&mut process).await?;
    lines.push(Line::plain("load average at the end", load_average()?));
    bench.close().await?;
    Ok(lines)
}

/// Measures the submissions of one client, which submits [`SUBMISSIONS`] lists in sequence.
async fn submissions(bench: &BenchScheduler, url: &str) -> anyhow::Result<Line> {
    let token = bench.token()?;
    let channel = tonic::transport::Endpoint::from_shared(url.to_owned())?.connect().await?;
    let mut sites = SiteServiceClient::new(channel);
    let began = Instant::now();
    for number in 0..SUBMISSIONS {
        submit(&mut sites, &token, &format!("batch-{number}"), SUBMITTED).await?;
    }
    let all = u64::try_from(SUBMITTED * SUBMISSIONS)?;
    Ok(Line::at_least("sites submitted a second, durable", rate(all, began), 20_000.0))
}

/// Measures how long free slots wait for leases, while `freed` slots become free per second.
async fn latency(agents: &[SimulatedAgent], freed: u32) -> anyhow::Result<Vec<Line>> {
    let pause = Duration::from_secs(1) * u32::try_from(agents.len())? / freed;
    agents.iter().for_each(|agent| agent.set_mode(Mode::FreeOneEvery(pause)));
    tokio::time::sleep(LEASES_SPELL).await;
    agents.iter().for_each(|agent| agent.set_mode(Mode::Pause));
    let mut waits: Vec<Duration> = agents.iter().flat_map(SimulatedAgent::waits).collect();
    waits.sort_unstable();
    ensure!(!waits.is_empty(), "no slot was filled");
    let quantile = |percent: usize| waits[(waits.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    let a_second = int(u64::try_from(waits.len())?)? / LEASES_SPELL.as_secs_f64();
    let p99 = "free slot to grant, p99, ms";
    Ok(vec![
        Line::plain(format!("slots freed and filled a second, of {freed}"), format!("{a_second:.0}")),
        Line::plain("free slot to grant, p50, ms", format!("{:.1}", quantile(50))),
        if Some(&freed) == FREED_A_SECOND.last() {
            Line::at_most(p99, quantile(99), 50.0)
        } else {
            Line::plain(p99, format!("{:.1}", quantile(99)))
        },
    ])
}

const SITES: u64 = 1_000_000;
const CAPACITY: u32 = 100;
/// Number of backups. Grants are counted during each backup, and for [`SPELL`] before and after it.
/// `SPELL` is so short that a million sites suffice even with nine thousand grants per second.
const BACKUPS: usize = 3;
const SPELL: Duration = Duration::from_secs(6);

pub(super) async fn backup() -> anyhow::Result<Vec<Line>> {
    let bench = BenchScheduler::start(AGENTS).await?;
    bench_scheduler::seed_assigned(&bench.pool, SITES).await?;
    bench_scheduler::seed_measured(&bench.pool).await?;
    bench_scheduler::seed_slots(&bench.pool, CAPACITY).await?;
    let mut lines = vec![Line::plain("load average at the start", load_average()?)];
    let (mut process, url) = bench.serve().await?;
    let granted = Arc::new(AtomicU64::new(0));
    let mut agents = Vec::new();
    for credential in &bench.credentials {
        agents.push(SimulatedAgent::start(&url, credential, CAPACITY, Arc::clone(&granted)).await?);
    }
    agents.iter().for_each(|agent| agent.set_mode(Mode::Answer));
    await_grants(&granted, 10_000).await?;

    let spell = async || {
        let (before, began) = (granted.load(Ordering::Relaxed), Instant::now());
        tokio::time::sleep(SPELL).await;
        rate(granted.load(Ordering::Relaxed) - before, began)
    };
    let file = bench.directory.path().join("backup.tar");
    let (mut alone, mut ratios, mut lengths) = (vec![spell().await], Vec::new(), Vec::new());
    for _ in 0..BACKUPS {
        let (before, began) = (granted.load(Ordering::Relaxed), Instant::now());
        landfall(&bench, &["backup", "--force", "--database-url", bench.postgres.url()], &file, "scheduler").await?;
        lengths.push(began.elapsed().as_secs_f64());
        let during = rate(granted.load(Ordering::Relaxed) - before, began);
        alone.push(spell().await);
        ratios.push(during / ((alone[alone.len() - 2] + alone[alone.len() - 1]) / 2.0));
    }
    ensure!(
        granted.load(Ordering::Relaxed) + 10_000 < SITES,
        "nearly everything was granted: there was nothing to measure by"
    );
    drop(agents);
    bench.end(&mut process).await?;
    let megabytes = std::fs::metadata(&file).context("measure the backup")?.len() / 1_000_000;

    let began = Instant::now();
    landfall(&bench, &["restore"], &file, "restored").await?;
    let restored = began.elapsed().as_secs_f64();
    lines.push(Line::plain("grants a second without a backup", format!("{:.0}", median(alone))));
    lines.push(Line::at_least("grants during a backup, of those before and after it", median(ratios), 0.8));
    lines.push(Line::at_most("backup of 1,000,000 sites under grants, s", median(lengths), 60.0));
    lines.push(Line::plain("the backup's file, MB", megabytes.to_string()));
    lines.push(Line::at_most("restore of 1,000,000 sites, s", restored, 180.0));
    lines.push(Line::plain("load average at the end", load_average()?));
    bench.close().await?;
    Ok(lines)
}

/// Runs an operator's command with the arguments `words` and `file`. `data_dir` is relative to the
/// folder of the benchmark.
async fn landfall(
    bench: &BenchScheduler,
    words: &[&str],
    file: &std::path::Path,
    data_dir: &str,
) -> anyhow::Result<()> {
    let mut command = Command::new(Binaries::find()?.landfall);
    command.arg("--data-dir").arg(bench.directory.path().join(data_dir)).args(words).arg(file);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.context("run landfall")?;
    ensure!(output.status.success(), "landfall {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Number of pairs of runs, one without a collector and one with it.
const PAIRS: usize = 5;
/// Number of grants before the measurement of a run begins.
const WARM: u64 = 10_000;
/// Minimum rate of grants with traces, as a share of the rate without them.
const FEWEST: f64 = 0.95;

pub(super) async fn traces() -> anyhow::Result<Vec<Line>> {
    let bench = BenchScheduler::start(AGENTS).await?;
    bench_scheduler::seed_assigned(&bench.pool, SITES).await?;
    bench_scheduler::seed_slots(&bench.pool, CAPACITY).await?;
    let spans = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&spans);
    let address = collector(move |_, body| {
        let count = String::from_utf8_lossy(body).matches("\"spanId\"").count();
        counted.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    })
    .await?;
    let url = format!("http://{address}");
    let mut lines = vec![Line::plain("load average at the start", load_average()?)];
    let (mut without, mut with, mut ratios, mut granted) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..PAIRS {
        let off = grants(&bench, &[], &mut granted).await?;
        let on = grants(&bench, &["--otlp", &url], &mut granted).await?;
        without.push(off);
        with.push(on);
        ratios.push(on / off);
    }
    ensure!(granted < SITES, "every site was granted: the rates are too low");
    let spans = spans.load(Ordering::Relaxed);
    ensure!(spans > 0, "the collector received no span");
    lines.push(Line::plain("grants a second without traces", format!("{:.0}", median(without))));
    lines.push(Line::plain("grants a second with traces", format!("{:.0}", median(with))));
    lines.push(Line::at_least("grants with traces, of those without", median(ratios), FEWEST));
    lines.push(Line::plain("spans a grant", format!("{:.1}", int(spans)? / int(granted)? * 2.0)));
    lines.push(Line::plain("load average at the end", load_average()?));
    bench.close().await?;
    Ok(lines)
}

/// The grants per second of a scheduler that runs with `arguments`. The agents report each outcome
/// immediately. Adds the run's grants to `all`.
async fn grants(bench: &BenchScheduler, arguments: &[&str], all: &mut u64) -> anyhow::Result<f64> {
    let (mut process, url) = bench.serve_with(arguments).await?;
    let granted = Arc::new(AtomicU64::new(0));
    let mut agents = Vec::new();
    for credential in &bench.credentials {
        agents.push(SimulatedAgent::start(&url, credential, CAPACITY, Arc::clone(&granted)).await?);
    }
    agents.iter().for_each(|agent| agent.set_mode(Mode::Answer));
    await_grants(&granted, WARM).await?;
    let (before, began) = (granted.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(SPELL).await;
    let rate = rate(granted.load(Ordering::Relaxed) - before, began);
    drop(agents);
    bench.end(&mut process).await?;
    *all += granted.load(Ordering::Relaxed);
    Ok(rate)
}

/// The number of events per second, if `count` events have happened since this time.
fn rate(count: u64, since: Instant) -> f64 {
    int(count).unwrap_or_default() / since.elapsed().as_secs_f64()
}

/// Converts a count to a float. Fails if the count is too large.
fn int(count: u64) -> anyhow::Result<f64> {
    Ok(f64::from(u32::try_from(count)?))
}
