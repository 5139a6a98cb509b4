//! Tests of the `landfall-agent` binary. The tests check that killed crawls resume, that the binary
//! reports mistakes and the private networks that the guard permits, and that environment variables
//! for proxies do not redirect its requests.

#![expect(clippy::unwrap_used, reason = "a test stops where it breaks")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use landfall_agent::warc::ResponseLine;
use landfall_agent::warc::read::records;

const PAGES: usize = 400;
const KILLS: usize = 3;
/// Before the first visit, a crawl's file is shorter than this number of bytes.
const HEAD: u64 = 300;

/// Starts a site of `pages` pages, each with links to three other pages. Returns its address, and
/// the counters of requests and of connections.
fn site(pages: usize) -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, asked, connected) = (listener.local_addr().unwrap(), Arc::default(), Arc::default());
    let (counted, accepted): (Arc<AtomicUsize>, Arc<AtomicUsize>) = (Arc::clone(&asked), Arc::clone(&connected));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            accepted.fetch_add(1, Ordering::SeqCst);
            let (stream, counted) = (stream.unwrap(), Arc::clone(&counted));
            std::thread::spawn(move || {
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                while let Some(line) = lines.next() {
                    counted.fetch_add(1, Ordering::SeqCst);
                    lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
                    // Errors are ignored, because the client may have disconnected.
                    drop((&stream).write_all(answer(line.split(' ').nth(1).unwrap_or_default(), pages).as_bytes()));
                }
            });
        }
    });
    (addr, asked, connected)
}

fn answer(path: &str, pages: usize) -> String {
    let number = if path == "/" { Some(0) } else { path[1..].parse().ok() };
    let Some(number) = number.filter(|number| *number < pages) else {
        return "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned();
    };
    let links = (1..=3).map(|link| number * 3 + link).filter(|link| *link < pages);
    let links: String = links.map(|link| format!("<a href=/{link}>")).collect();
    let body = format!("<p>page {number}{links}{}", "word ".repeat(500));
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn crawl(site: &str, arguments: &[&str], environment: &[(&str, String)]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_landfall-agent"))
        .args(["--log", "error", "crawl", site, "--request-interval", "1ms", "--contact-url", "https://example.org/x"])
        .arg("--dir")
        .arg(folder.path())
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap()
}

#[test]
fn no_proxy_of_the_environment_is_used() {
    let ((site, asked, _), (proxy, _, proxied)) = (self::site(1), self::site(1));
    let proxy = format!("http://{proxy}");
    let names = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let environment = names.map(|name| (name, proxy.clone()));
    let output = crawl(&format!("http://{site}"), &["--allow-net", "127.0.0.1/32"], &environment);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("complete: 1 pages"), "{output:?}");
    assert!(asked.load(Ordering::SeqCst) > 0);
    assert_eq!(proxied.load(Ordering::SeqCst), 0);
}

#[test]
fn an_open_guard_is_announced_and_a_closed_one_connects_to_nothing() {
    let (site, _, connected) = site(1);
    let site = format!("http://{site}");
    let open = "THE GUARD IS OPEN";
    let output = crawl(&site, &[], &[]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && printed.contains("the guard refuses 127.0.0.1"), "{output:?}");
    assert!(!printed.contains(open), "{output:?}");
    assert_eq!(connected.load(Ordering::SeqCst), 0);
    let output = crawl(&site, &["--allow-net", "127.0.0.0/8"], &[]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains(&format!("127.0.0.0/8: {open}")), "{output:?}");
}

/// Writes the settings of an agent that retries forever, because its scheduler is on the discard
/// port, where no server listens.
fn settings(more: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "scheduler = 'http://127.0.0.1:9'\nname = 'a'\ncity = 'Harbin'\ncarrier = 'x'\n{more}\ndns = '127.0.0.1'\n\
         [beacon]\nenabled = false\n"
    );
    std::fs::write(folder.path().join("agent.toml"), config).unwrap();
    std::fs::write(folder.path().join("credential"), "a-credential").unwrap();
    folder
}

#[test]
fn an_agent_warns_at_its_start_that_its_guard_is_open() {
    let folder = settings("allow_net = ['10.0.0.0/8']");
    let mut agent = Command::new(env!("CARGO_BIN_EXE_landfall-agent"))
        .args(["run", "--allow-net", "127.2.0.0/16", "--dir"])
        .arg(folder.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = BufReader::new(agent.stderr.take().unwrap()).lines().map_while(Result::ok);
    let warnings: Vec<String> = printed.by_ref().take_while(|line| !line.contains("agent started")).collect();
    agent.kill().unwrap();
    agent.wait().unwrap();
    for net in ["10.0.0.0/8", "127.2.0.0/16"] {
        let warns = |line: &String| line.contains("WARN") && line.contains("THE GUARD IS OPEN") && line.contains(net);
        assert!(warnings.iter().any(warns), "{net}: {warnings:?}");
    }
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn prometheus_reads_what_an_agent_does() {
    let folder = settings("metrics_public = false");
    let mut agent = Command::new(env!("CARGO_BIN_EXE_landfall-agent"))
        .args(["run", "--dir"])
        .arg(folder.path())
        .env("LANDFALL_AGENT_METRICS", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let greeting = BufReader::new(agent.stdout.take().unwrap()).lines().map_while(Result::ok);
    let url = greeting.filter_map(|line| Some(line.split_once("metrics    http://")?.1.to_owned())).next().unwrap();
    let address = url.strip_suffix("/metrics").unwrap();
    // The agent logs `session ended` after its first attempt to connect has failed.
    let failed = BufReader::new(agent.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(failed.into_iter().any(|line| line.contains("session ended")));
    let head = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let answer = ask(address, &head("/metrics"));
    let (head_of, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head_of.starts_with("HTTP/1.1 200") && head_of.contains("content-type: text/plain; version=0.0.4"),
        "{answer}"
    );
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse::<f64>().unwrap()
    };
    assert!(value("landfall_agent_session_failures_total{reason=\"not-connected\"}") >= 1.0);
    assert_eq!(value("landfall_agent_connected"), 0.0);
    assert_eq!(value("landfall_agent_slots"), 16.0);
    assert!(value("landfall_agent_disk_free_bytes") > 0.0 && value("landfall_agent_start_time_seconds") > 1.7e9);
    assert!(ask(address, &head("/")).starts_with("HTTP/1.1 404"));
    assert!(ask(address, "POST /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").starts_with("HTTP/1.1 405"));
    agent.kill().unwrap();
    agent.wait().unwrap();

    let folder = settings("");
    let printed = refused(&["run", "--metrics", "0.0.0.0:0", "--dir", folder.path().to_str().unwrap()], "");
    assert!(
        printed.contains("metrics: 0.0.0.0:0 is not a loopback address") && printed.contains("metrics_public"),
        "{printed}"
    );
}

#[test]
fn every_line_of_the_log_is_json_if_asked() {
    let folder = settings("allow_net = ['10.0.0.0/8']");
    let mut agent = Command::new(env!("CARGO_BIN_EXE_landfall-agent"))
        .args(["run", "--dir"])
        .arg(folder.path())
        .env("LANDFALL_LOG_FORMAT", "json")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let printed = BufReader::new(agent.stderr.take().unwrap()).lines().map_while(Result::ok);
    let lines = printed.map(|line| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")));
    let mut lines = lines.inspect(|line: &serde_json::Value| {
        let text = |key: &str| line[key].as_str().unwrap_or_else(|| panic!("{key}: {line}"));
        assert!(text("timestamp").ends_with('Z') && text("target").starts_with("landfall_agent"), "{line}");
    });
    let first = lines.next().unwrap();
    assert_eq!((&first["level"], &first["fields"]["net"]), (&"WARN".into(), &"10.0.0.0/8".into()), "{first}");
    let failed = lines.find(|line| line["message"].as_str().unwrap().starts_with("session ended")).unwrap();
    let error = failed["fields"]["error"].as_str().unwrap();
    assert!(error.starts_with("connect to the scheduler at http://127.0.0.1:9"), "{failed}");
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert!(
        refused(&["--log-format", "xml", "crawl", "http://127.0.0.1"], "").contains("[possible values: text, json]")
    );
}

fn refused(arguments: &[&str], input: &str) -> String {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_landfall-agent"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Errors are ignored: an agent that refuses a flag does not read its input.
    drop(agent.stdin.take().unwrap().write_all(input.as_bytes()));
    let output = agent.wait_with_output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn relative_paths_start_at_the_given_folder_and_errors_name_the_file() {
    let (etc, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = etc.path().join("x.toml");
    let text = "scheduler = 'http://127.0.0.1:1'\nname = 'a'\ncity = 'b'\ncarrier = 'c'\nbeacon.enabled = false\n";
    std::fs::write(&config, text).unwrap();
    let (config, dir) = (config.to_str().unwrap(), state.path().to_str().unwrap());
    let printed = refused(&["run", "--config", config, "--dir", dir], "");
    let missing = |folder: &str| format!("credential: read {folder}/credential: No such file");
    assert!(printed.contains(&missing(dir)), "{printed}");
    let printed = refused(&["run", "--config", config], "");
    assert!(printed.contains(&missing(etc.path().to_str().unwrap())), "{printed}");
    let printed = refused(&["run", "--dir", dir, "--allow-net", "127.0.1.0/33"], "");
    assert!(printed.contains("'127.0.1.0/33': a prefix is 0 to 32 (IPv4)"), "{printed}");
}

#[test]
fn a_token_has_one_source_and_is_one_word() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let enrol = |more: &[&str], input: &str| {
        refused(&[&["enrol", "--scheduler", "http://127.0.0.1:1", "--dir", dir], more].concat(), input)
    };
    assert!(enrol(&[], "").contains("--token-file <FILE>|--token <TOKEN>"));
    assert!(enrol(&["--token", "a", "--token-file", "-"], "").contains("cannot be used with"));
    for (file, input, printed) in [
        ("-", " \n", "--token-file: standard input is empty; it must contain only the token"),
        ("-", "a b\n", "--token-file: standard input contains more than one word; it must contain only the token"),
        ("missing", "", "--token-file: read missing: No such file"),
        // No server listens on this port. The connection error shows that the token itself was
        // accepted.
        ("-", "abc\n", "connect to the scheduler at http://127.0.0.1:1"),
    ] {
        let refusal = enrol(&["--token-file", file], input);
        assert!(refusal.contains(printed), "{refusal}");
    }
}

/// The command for a crawl that stores its pages.
fn storing(site: SocketAddr, folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landfall-agent"));
    command.args(["--log", "warn", "crawl", &format!("http://{site}")]);
    command.args(["--allow-net", "127.0.0.1/32", "--contact-url", "https://example.org/crawler"]);
    command.arg("--dir").arg(folder).arg("--warc").arg(folder.join("pages"));
    command.stdin(Stdio::null());
    command
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.to_str().unwrap().ends_with(ending)).collect()
}

/// The length of the running crawl's file.
fn log_length(folder: &Path) -> u64 {
    let files = if folder.exists() { files(folder, ".crawl") } else { Vec::new() };
    files.first().and_then(|file| std::fs::metadata(file).ok()).map_or(0, |metadata| metadata.len())
}

#[test]
fn a_crawl_that_is_killed_repeatedly_stores_every_page() {
    let (site, asked, _) = site(PAGES);
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    std::fs::write(&policy, "max_pages = 1000\nmax_depth = 20\nrequest_interval = '100ms'\n").unwrap();
    let pages = folder.path().join("pages");
    for _ in 0..KILLS {
        let before = log_length(&pages);
        let mut child = storing(site, folder.path()).arg("--policy").arg(&policy).spawn().unwrap();
        // Kill the crawl just after pages began to count as visited. If such a page were not stored
        // yet, it would be missing at the end.
        while log_length(&pages) <= before.max(HEAD) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let in_vain = asked.load(Ordering::SeqCst);
    let output =
        storing(site, folder.path()).arg("--policy").arg(&policy).args(["--request-interval", "0s"]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains(&format!("complete: {PAGES} pages")), "{printed}");
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked < in_vain + PAGES, "it went on: {asked} requests in all, {in_vain} before the last start");

    assert_eq!((files(&pages, ".open").len(), files(&pages, ".crawl").len()), (0, 0));
    let (mut stored, mut listed) = (BTreeSet::new(), BTreeSet::new());
    for file in files(&pages, ".warc.gz") {
        let all = records(&file).unwrap();
        stored.extend(all.iter().filter_map(|record| record.field("WARC-Target-URI").map(str::to_owned)));
    }
    for file in files(&pages, ".jsonl") {
        let text = std::fs::read_to_string(file).unwrap();
        listed.extend(text.lines().map(|line| serde_json::from_str::<ResponseLine>(line).unwrap().url));
    }
    // All pages and robots.txt are stored.
    assert_eq!((stored.len(), listed.len()), (PAGES + 1, PAGES + 1));
}

#[test]
fn flags_override_the_policy_file_and_its_mistakes_are_named() {
    let (site, ..) = site(PAGES);
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    std::fs::write(&policy, "max_pages = 7\nrequest_interval = '0s'\n").unwrap();
    for (flags, pages) in [(&[][..], 7), (&["--max-pages", "3"], 3)] {
        let output = storing(site, folder.path()).arg("--policy").arg(&policy).args(flags).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.contains(&format!("truncated by pages: {pages} pages")), "{printed}");
        assert!(printed.contains("\nstored in "), "{printed}");
    }
    std::fs::write(&policy, "max_pages = 7\nmax_page = 8\n").unwrap();
    let output = storing(site, folder.path()).arg("--policy").arg(&policy).output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && printed.contains("policy.toml: line 2: max_page: unknown field"), "{printed}");
}
