//! `lab measured -- CMD`: runs a command and prints its processor time, peak memory and duration as
//! JSON.
//!
//! The command is the only child of a separate process, because the system reports only the total
//! cost of all children of a process.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

/// Time limit of a crawl. The slowest crawler needs about thirty seconds.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ProcessCost {
    pub user_s: f64,
    pub system_s: f64,
    pub wall_s: f64,
    /// Peak memory in KiB, which is never less than the few MiB that `lab` occupied when it started
    /// the process.
    pub peak_kib: i64,
}

impl ProcessCost {
    pub fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }
}

/// Arguments of `lab measured`.
#[derive(Debug, Clone, Args)]
pub struct MeasuredArgs {
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Runs a command, and prints its cost as JSON.
pub async fn print_cost(args: &MeasuredArgs) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(&measured(&args.command).await?)?);
    Ok(())
}

/// Runs a command and returns its cost. The command's output goes to standard error.
async fn measured(command: &[String]) -> anyhow::Result<ProcessCost> {
    let (program, args) = command.split_first().context("there is a command")?;
    let started = Instant::now();
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(std::io::stderr()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("start {program}"))?;
    let status = tokio::time::timeout(PATIENCE, child.wait()).await;
    let status = status.with_context(|| format!("{program} took longer than {PATIENCE:?}"))??;
    let wall_s = started.elapsed().as_secs_f64();
    ensure!(status.success(), "{program}: {status}");
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("ask what the child cost")?;
    let (user_s, system_s) = (seconds(usage.user_time()), seconds(usage.system_time()));
    Ok(ProcessCost { user_s, system_s, wall_s, peak_kib: usage.max_rss() })
}

fn seconds(time: TimeVal) -> f64 {
    let whole = u64::try_from(time.tv_sec()).unwrap_or_default();
    let micros = u64::try_from(time.tv_usec()).unwrap_or_default();
    (Duration::from_secs(whole) + Duration::from_micros(micros)).as_secs_f64()
}

/// Runs a command in `folder` through `lab measured`, and returns its cost.
pub(super) async fn cost_of(command: &[String], folder: &Path) -> anyhow::Result<ProcessCost> {
    let own = std::env::current_exe().context("find the lab's own executable")?;
    let mut lab = Command::new(own);
    lab.arg("measured").arg("--").args(command).current_dir(folder).stdin(Stdio::null()).kill_on_drop(true);
    let output = lab.output().await.context("start lab measured")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = said.lines().rev().take(3).collect();
        bail!("{}", last.into_iter().rev().collect::<Vec<_>>().join(" / "));
    }
    serde_json::from_slice(&output.stdout).context("read what lab measured said")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_successful_command_has_a_cost_and_a_failed_one_is_an_error() {
        let sh = |script: &str| ["sh", "-c", script].map(str::to_owned);
        let cost = measured(&sh("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")).await.unwrap();
        assert!(cost.user_s > 0.001 && cost.peak_kib > 100 && cost.wall_s >= cost.user_s * 0.5, "{cost:?}");
        assert!(measured(&sh("exit 3")).await.is_err());
        assert!(measured(&["/no/such/program".to_owned()]).await.is_err());
    }
}
