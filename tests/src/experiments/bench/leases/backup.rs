//! Measures a backup of a million sites: its duration, its effect on the rate of grants, and the
//! duration of a restore.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::super::line::{Line, median};
use super::agent::{Mode, SimulatedAgent, await_grants};
use super::bench_scheduler::BenchScheduler;
use super::rate::rate;
use super::seed;
use crate::cluster::Binaries;
use crate::machine::load_average;

const SITES: u64 = 1_000_000;
const AGENTS: usize = 20;
const CAPACITY: u32 = 100;
/// Number of backups. Grants are counted during each backup, and for [`SPELL`] before and after it.
/// `SPELL` is so short that a million sites suffice even with nine thousand grants per second.
const BACKUPS: usize = 3;
const SPELL: Duration = Duration::from_secs(6);

pub(in super::super) async fn run() -> anyhow::Result<Vec<Line>> {
    let bench = BenchScheduler::start(AGENTS).await?;
    seed::assigned(&bench.pool, SITES).await?;
    seed::measured(&bench.pool).await?;
    seed::slots(&bench.pool, CAPACITY).await?;
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
