//! Tests the dashboard in a real browser, with a fleet whose crawls have ended.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use landfall_lab::cluster::process::until;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

use crate::harness::{PATIENCE, beside, count, small, submit, submit_list};

/// The folder with playwright-core, which drives the browser, and axe-core. Fails if the driver or
/// the browser is not installed.
fn modules() -> Result<PathBuf, &'static str> {
    let executable = std::env::current_exe().map_err(|_| "the test's own executable is unknown")?;
    let target = executable.ancestors().nth(3).ok_or("the target folder is unknown")?;
    let modules = target.join("browser/node_modules");
    if !modules.join("playwright-core").exists() || !modules.join("axe-core").exists() {
        return Err("the browser's driver is not installed; ops/browser.sh installs it");
    }
    match Path::new("/usr/bin/chromium").exists() {
        true => Ok(modules),
        false => Err("chromium is not installed; ops/setup.sh installs it"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_works_in_a_browser() {
    let modules = match modules() {
        Ok(modules) => modules,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    let _beside = beside().await;
    let mut cluster = small(4, 8, 8).await;
    cluster.await_mesh(PATIENCE).await.unwrap();
    cluster.operate(&["landmarks", "elect", "--count", "3"]).await.unwrap();
    submit(&cluster, &["--request-interval", "100ms", "--watch"]).await;
    submit_list(&cluster, "http://closed.test:1\n", "spring", &[]).await;
    let failed =
        async || Ok((count(&cluster, "select count(*) from tasks where state = 'failed'").await == 1).then_some(()));
    until("a site to fail", PATIENCE, failed).await.unwrap();
    // No agent has the tag, so the batch stays open until the browser cancels it.
    submit_list(&cluster, &cluster.site_names().join("\n"), "winter", &["--tag", "absent"]).await;
    let scheduler = &cluster.schedulers[0];
    let token = std::fs::read_to_string(scheduler.data_dir().join("operator-token")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("browser/dashboard.mjs");
    let shots = std::env::var("LAB_SCREENSHOTS").unwrap_or_default();
    let mut node = Command::new("node");
    node.arg(script).arg(modules).arg(format!("http://{}", scheduler.address())).arg(token.trim());
    node.args([&cluster.agent_names()[0], &cluster.site_names()[0], "autumn", "spring", "winter", &shots]);
    let mut node = node.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut done = node.stdin.take().unwrap();
    let mut lines = BufReader::new(node.stdout.take().unwrap()).lines();
    let mut wrong = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        match line.as_str() {
            "stop" => cluster.schedulers[0].process().kill().await.unwrap(),
            "start" => cluster.schedulers[0].restart().unwrap(),
            _ => {
                wrong.push(line);
                continue;
            }
        }
        done.write_all(b"done\n").await.unwrap();
    }
    assert!(node.wait().await.unwrap().success(), "{}", wrong.join("\n"));
    assert_eq!(wrong, Vec::<String>::new());
    let retried =
        "select count(*) from tasks t join batches b on b.id = t.batch_id where b.name = 'spring' and t.round = 2";
    assert_eq!(count(&cluster, retried).await, 1, "the failed site was retried");
    let open = "select count(*) from tasks t join batches b on b.id = t.batch_id where b.name = 'winter' and t.state <> 'cancelled'";
    assert_eq!(count(&cluster, open).await, 0, "the batch was cancelled");
    cluster.stop().await.unwrap();
}
