//! Measures the cost of traces: the rate of grants while the scheduler sends spans to a collector,
//! as a share of the rate without a collector. Without a collector, the scheduler makes no spans.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::agent::{Mode, SimulatedAgent, await_grants};
use super::bench_scheduler::BenchScheduler;
use super::rate::{int, rate};
use super::seed;
use crate::cluster::scheduler::collector;
use crate::experiments::bench::line::{Line, median};
use crate::machine::load_average;

const SITES: u64 = 1_000_000;
const AGENTS: usize = 20;
const CAPACITY: u32 = 100;
/// Number of pairs of runs, one without a collector and one with it.
const PAIRS: usize = 5;
/// Number of grants before the measurement of a run begins.
const WARM: u64 = 10_000;
/// Duration of the measurement of a run.
const SPELL: Duration = Duration::from_secs(6);
/// Minimum rate of grants with traces, as a share of the rate without them.
const FEWEST: f64 = 0.95;

pub(in super::super) async fn run() -> anyhow::Result<Vec<Line>> {
    let bench = BenchScheduler::start(AGENTS).await?;
    seed::assigned(&bench.pool, SITES).await?;
    seed::slots(&bench.pool, CAPACITY).await?;
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
