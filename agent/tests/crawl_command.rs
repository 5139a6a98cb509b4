//! The binary's `crawl`, as people type it.

#![expect(clippy::unwrap_used, reason = "a test stops where it breaks")]

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use landfall_agent::warc::Line;
use landfall_agent::warc::read::records;
use tokio::net::TcpListener;
use tokio::process::Command;

const PAGES: usize = 400;
const KILLS: usize = 3;
/// A crawl's file begins with less than this, in bytes; what was visited comes after it.
const HEAD: u64 = 300;

/// A site of [`PAGES`] pages, and how many requests it was sent.
struct Site {
    addr: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Site {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let site = Self { addr: listener.local_addr().unwrap(), asked: Arc::default() };
        let asked = Arc::clone(&site.asked);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let asked = Arc::clone(&asked);
                let service = service_fn(move |request: Request<Incoming>| {
                    asked.fetch_add(1, Ordering::Relaxed);
                    std::future::ready(Ok::<_, Infallible>(answer(request.uri().path())))
                });
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move { drop(connection.await) });
            }
        });
        site
    }
}

fn answer(path: &str) -> Response<Full<Bytes>> {
    let number: Option<usize> = if path == "/" { Some(0) } else { path[1..].parse().ok() };
    let Some(number) = number.filter(|number| *number < PAGES) else {
        return Response::builder().status(404).body(Full::default()).unwrap();
    };
    let links = (1..=3).map(|link| number * 3 + link).filter(|link| *link < PAGES);
    let links: String = links.map(|link| format!("<a href=/{link}>")).collect();
    let body = format!("<p>page {number}{links}{}", "word ".repeat(500));
    Response::builder().header("content-type", "text/html").body(Full::from(body)).unwrap()
}

fn crawl(site: &Site, folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landfall-agent"));
    command.args(["--log", "warn", "crawl", &format!("http://{}", site.addr)]);
    command.args(["--allow-net", "127.0.0.1/32", "--contact-url", "https://example.org/crawler"]);
    command.arg("--dir").arg(folder).arg("--warc").arg(folder.join("pages"));
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.to_str().unwrap().ends_with(ending)).collect()
}

/// The length of the file in which the crawl under way is kept.
fn log_length(folder: &Path) -> u64 {
    let files = if folder.exists() { files(folder, ".crawl") } else { Vec::new() };
    files.first().and_then(|file| std::fs::metadata(file).ok()).map_or(0, |metadata| metadata.len())
}

#[tokio::test]
async fn a_crawl_that_is_killed_again_and_again_has_stored_every_page_in_the_end() {
    let site = Site::start().await;
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    std::fs::write(&policy, "max_pages = 1000\nmax_depth = 20\nrequest_interval = '10ms'\n").unwrap();
    let pages = folder.path().join("pages");
    for _ in 0..KILLS {
        let before = log_length(&pages);
        let mut child = crawl(&site, folder.path()).arg("--policy").arg(&policy).spawn().unwrap();
        // The very moment at which pages count as visited: what is not stored now is missing in the end.
        while log_length(&pages) <= before.max(HEAD) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        child.kill().await.unwrap();
    }
    let in_vain = site.asked.load(Ordering::Relaxed);
    let output = crawl(&site, folder.path())
        .arg("--policy")
        .arg(&policy)
        .args(["--request-interval", "0s"])
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(&format!("complete: {PAGES} pages")), "{said}");
    let asked = site.asked.load(Ordering::Relaxed);
    assert!(asked < in_vain + PAGES, "it went on: {asked} requests in all, {in_vain} before the last start");

    assert_eq!((files(&pages, ".open").len(), files(&pages, ".crawl").len()), (0, 0));
    let (mut stored, mut listed) = (BTreeSet::new(), BTreeSet::new());
    for file in files(&pages, ".warc.gz") {
        let all = records(&file).unwrap();
        stored.extend(all.iter().filter_map(|record| record.field("WARC-Target-URI").map(str::to_owned)));
    }
    for file in files(&pages, ".jsonl") {
        let text = std::fs::read_to_string(file).unwrap();
        listed.extend(text.lines().map(|line| serde_json::from_str::<Line>(line).unwrap().url));
    }
    // And its robots.txt.
    assert_eq!((stored.len(), listed.len()), (PAGES + 1, PAGES + 1));
}

#[tokio::test]
async fn flags_go_before_the_policy_and_mistakes_in_it_are_named() {
    let site = Site::start().await;
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    std::fs::write(&policy, "max_pages = 7\nrequest_interval = '0s'\n").unwrap();
    for (flags, pages) in [(&[][..], 7), (&["--max-pages", "3"], 3)] {
        let output = crawl(&site, folder.path()).arg("--policy").arg(&policy).args(flags).output().await.unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(&format!("truncated by pages: {pages} pages")), "{said}");
        assert!(said.contains("\nstored in "), "{said}");
    }
    std::fs::write(&policy, "max_pages = 7\nmax_page = 8\n").unwrap();
    let output = crawl(&site, folder.path()).arg("--policy").arg(&policy).output().await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("policy.toml: line 2: max_page: there is no such field"),
        "{said}"
    );
}
