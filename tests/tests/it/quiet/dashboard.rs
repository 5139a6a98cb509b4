//! Uses the dashboard in a real browser, beside a fleet that has crawled.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::harness::{PATIENCE, alone, small, submit};

/// The folder of the browser's driver, if it and the browser are installed.
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
    let _turn = alone().await;
    let mut cluster = small(6, 24, 8).await;
    cluster.await_mesh(PATIENCE).await.unwrap();
    cluster.operate(&["landmarks", "elect", "--count", "4"]).await.unwrap();
    submit(&cluster, &["--request-interval", "100ms", "--watch"]).await;
    let scheduler = &cluster.schedulers[0];
    let token = std::fs::read_to_string(scheduler.data_dir().join("operator-token")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("browser/dashboard.mjs");
    let shots = std::env::var("LAB_SCREENSHOTS").unwrap_or_default();
    let mut node = Command::new("node");
    node.arg(script).arg(modules).arg(format!("http://{}", scheduler.address())).arg(token.trim());
    node.args([&cluster.agent_names()[0], &cluster.site_names()[0], "autumn", &shots]);
    let ran = node.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    println!("{}", String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    cluster.stop().await.unwrap();
}
