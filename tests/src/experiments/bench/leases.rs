//! Measures how many sites a scheduler accepts per second, how many leases it grants, and how many
//! crawls it completes. It also measures how long a free slot waits for a lease, and how long a
//! restart takes with a million open tasks.
//!
//! Everything except the agents is real and runs on this machine: the scheduler's binary in the
//! folder of the lab's binary (build it with `--release`), a Postgres with fsync, and gRPC streams.
//! The agents crawl nothing, and can report outcomes immediately. The printed load average includes
//! other work on the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use landfall_proto::v1::site_service_client::SiteServiceClient;

use super::line::Line;
use crate::cluster::process::until;
use crate::machine::load_average;
use agent::{Mode, PATIENCE, SimulatedAgent, await_grants};
use bench_scheduler::BenchScheduler;
use rate::{int, rate};
use submits::submit;

mod agent;
pub(super) mod backup;
pub(super) mod bench_scheduler;
mod rate;
pub(super) mod seed;
pub(super) mod submits;
pub(super) mod traces;

const AGENTS: usize = 20;
const CAPACITY: u32 = 4_000;
/// Number of open tasks at the start.
const OPEN: u64 = 1_000_000;
/// Number of sites per submission.
const SUBMITTED: usize = 20_000;
const SUBMISSIONS: usize = 5;
/// Duration of each measurement that is not limited by a number of tasks.
const SPELL: Duration = Duration::from_secs(10);
/// Numbers of slots that become free per second, over all agents, while the wait of free slots for
/// leases is measured. The wait has a target only for the larger number.
const FREED_A_SECOND: [u32; 2] = [500, 1_000];

pub(super) async fn run() -> anyhow::Result<Vec<Line>> {
    let bench = BenchScheduler::start(AGENTS).await?;
    let mut lines = vec![Line::plain("load average at the start", load_average()?)];
    let mut scheduler = bench.serve().await?;
    let idle = scheduler.0.resident_memory()?;
    lines.push(submissions(&bench, &scheduler.1).await?);
    bench.end(&mut scheduler.0).await?;
    seed::assigned(&bench.pool, OPEN).await?;

    let started = Instant::now();
    let granted = Arc::new(AtomicU64::new(0));
    let (mut process, url) = bench.serve().await?;
    let mut agents = Vec::new();
    for credential in &bench.credentials {
        agents.push(SimulatedAgent::start(&url, credential, CAPACITY, Arc::clone(&granted)).await?);
    }
    await_grants(&granted, 1).await?;
    let restarted = started.elapsed().as_secs_f64();
    lines.push(Line::at_most("restart with 1,000,000 open tasks to the first grant, s", restarted, 5.0));
    let began = Instant::now();
    let before = granted.load(Ordering::Relaxed);
    let all = u64::from(CAPACITY) * u64::try_from(AGENTS)?;
    await_grants(&granted, all).await?;
    lines.push(Line::at_least("durable grants a second, alone", rate(all - before, began), 10_000.0));

    // Each agent has [`CAPACITY`] leases. If its slots are reduced to one, an agent gets no new
    // lease until the outcomes of all its leases are recorded, so this phase measures completions
    // alone.
    seed::slots(&bench.pool, 1).await?;
    // Wait until all sessions have read the new number of slots. Sessions read the number every
    // second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let began = Instant::now();
    agents.iter().for_each(|agent| agent.set_mode(Mode::Answer));
    let answered = |agents: &[SimulatedAgent]| agents.iter().map(SimulatedAgent::acknowledged).sum::<u64>();
    until("every outcome to be acknowledged", PATIENCE, async || Ok((answered(&agents) >= all).then_some(()))).await?;
    lines.push(Line::at_least("durable completions a second, alone", rate(all, began), 10_000.0));

    seed::slots(&bench.pool, CAPACITY).await?;
    await_grants(&granted, all + 1).await?;
    let (grants, completions, began) = (granted.load(Ordering::Relaxed), answered(&agents), Instant::now());
    tokio::time::sleep(SPELL).await;
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
    let stored = seed::stored(&bench.pool).await?;
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
    tokio::time::sleep(SPELL).await;
    agents.iter().for_each(|agent| agent.set_mode(Mode::Pause));
    let mut waits: Vec<Duration> = agents.iter().flat_map(SimulatedAgent::waits).collect();
    waits.sort_unstable();
    ensure!(!waits.is_empty(), "no slot was filled");
    let quantile = |percent: usize| waits[(waits.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    let a_second = int(u64::try_from(waits.len())?)? / SPELL.as_secs_f64();
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
