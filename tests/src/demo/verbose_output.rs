//! Prints what `--verbose` adds: the operator's own reports, every check, every target, and the
//! lateness of the emulated network.

use super::elect_and_crawl::BATCH;
use super::targets::Target;
use crate::cluster::Cluster;
use crate::evidence::check::Check;
use crate::evidence::figures::text_table;

/// Number of printed rows of the assignment report.
const ROWS_SHOWN: usize = 12;

/// Prints the first assignments, and the report on the agents.
pub(super) async fn print_reports(cluster: &Cluster) -> anyhow::Result<()> {
    let table = cluster.operate(&["report", "assignments", "--batch", BATCH, "--format", "table"]).await?;
    println!("\nlandfall report assignments --batch {BATCH}");
    for line in table.lines().take(ROWS_SHOWN + 3) {
        println!("{line}");
    }
    println!("…\n\nlandfall report agents --batch {BATCH}");
    print!("{}", cluster.operate(&["report", "agents", "--batch", BATCH, "--format", "table"]).await?);
    Ok(())
}

pub(super) fn print_details(checks: &[Check], targets: &[Target], cluster: &Cluster, idle: Option<f64>) {
    println!("\nChecks, in the database and against the web servers' own logs");
    for check in checks {
        println!("{}", check.lines());
    }
    println!("\nTargets");
    let rows: Vec<Vec<String>> = targets
        .iter()
        .map(|Target { name, wanted, measured, met }| {
            let met = if *met { "met" } else { "MISSED" };
            vec![name.clone(), wanted.clone(), measured.clone(), met.to_owned()]
        })
        .collect();
    print!("{}", text_table(&["target", "wanted", "measured", ""], &rows));
    let lateness = cluster.world.lateness();
    let idle = idle.map_or("unknown".to_owned(), |idle| format!("{:.0} %", idle * 100.0));
    println!(
        "the emulated network was late by p50 {:.1?}, p99 {:.1?} over {} waits or packets; the computer was {idle} idle",
        lateness.quantile(0.5),
        lateness.quantile(0.99),
        lateness.count()
    );
}
