//! The real `landfall-agent`, as a person calls it: what it says of an open guard, and that nothing in its environment leads its
//! requests elsewhere.

#![expect(clippy::unwrap_used, reason = "a test stops where it breaks")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A site of one page, and how many connections it was asked over; it ends with the test.
fn site() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, connections) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let accepted = Arc::clone(&connections);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            accepted.fetch_add(1, Ordering::SeqCst);
            let mut stream = stream.unwrap();
            let head = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            if head.count() == 0 {
                continue;
            }
            let answer =
                "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\nconnection: close\r\n\r\na page";
            // Who does not listen any more has gone.
            drop(stream.write_all(answer.as_bytes()));
        }
    });
    (addr, connections)
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
    let ((site, asked), (proxy, proxied)) = (self::site(), self::site());
    let proxy = format!("http://{proxy}");
    let names = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let environment = names.map(|name| (name, proxy.clone()));
    let output = crawl(&format!("http://{site}"), &["--allow-net", "127.0.0.1/32"], &environment);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("complete: 1 pages"), "{output:?}");
    assert!(asked.load(Ordering::SeqCst) > 0);
    assert_eq!(proxied.load(Ordering::SeqCst), 0);
}

#[test]
fn an_open_guard_is_said_and_a_closed_one_connects_nothing() {
    let (site, asked) = site();
    let site = format!("http://{site}");
    let open = "THE GUARD IS OPEN";
    let output = crawl(&site, &[], &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("the guard refuses 127.0.0.1"), "{output:?}");
    assert!(!said.contains(open), "{output:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    let output = crawl(&site, &["--allow-net", "127.0.0.0/8"], &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(&format!("127.0.0.0/8: {open}")), "{output:?}");
}

#[test]
fn an_agent_says_at_its_start_that_its_guard_is_open() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody listens on the discard port: the agent goes on trying.
    let config = "scheduler = 'http://127.0.0.1:9'\nname = 'a'\ncity = 'Harbin'\ncarrier = 'x'\nallow_net = ['10.0.0.0/8']\n\
        dns = '127.0.0.1'\n[beacon]\nenabled = false\n";
    std::fs::write(folder.path().join("agent.toml"), config).unwrap();
    std::fs::write(folder.path().join("credential"), "a-credential").unwrap();
    let mut agent = Command::new(env!("CARGO_BIN_EXE_landfall-agent"))
        .args(["run", "--allow-net", "127.2.0.0/16", "--dir"])
        .arg(folder.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(agent.stderr.take().unwrap()).lines().map_while(Result::ok);
    let warnings: Vec<String> = said.by_ref().take_while(|line| !line.contains("agent started")).collect();
    agent.kill().unwrap();
    agent.wait().unwrap();
    for net in ["10.0.0.0/8", "127.2.0.0/16"] {
        let warns = |line: &String| line.contains("WARN") && line.contains("THE GUARD IS OPEN") && line.contains(net);
        assert!(warnings.iter().any(warns), "{net}: {warnings:?}");
    }
}

fn refused(arguments: &[&str], input: &str) -> String {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_landfall-agent"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Who refuses a flag reads nothing.
    drop(agent.stdin.take().unwrap().write_all(input.as_bytes()));
    let output = agent.wait_with_output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn relative_paths_are_meant_from_the_folder_that_is_said_and_errors_name_the_file() {
    let (etc, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = etc.path().join("x.toml");
    let text = "scheduler = 'http://127.0.0.1:1'\nname = 'a'\ncity = 'b'\ncarrier = 'c'\nbeacon.enabled = false\n";
    std::fs::write(&config, text).unwrap();
    let (config, dir) = (config.to_str().unwrap(), state.path().to_str().unwrap());
    let said = refused(&["run", "--config", config, "--dir", dir], "");
    let missing = |folder: &str| format!("credential: read {folder}/credential: No such file");
    assert!(said.contains(&missing(dir)), "{said}");
    let said = refused(&["run", "--config", config], "");
    assert!(said.contains(&missing(etc.path().to_str().unwrap())), "{said}");
    let said = refused(&["run", "--dir", dir, "--allow-net", "127.0.1.0/33"], "");
    assert!(said.contains("'127.0.1.0/33': a prefix is 0 to 32 (IPv4)"), "{said}");
}

#[test]
fn a_token_comes_from_one_place_and_is_one_word() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let enrol = |more: &[&str], input: &str| {
        refused(&[&["enrol", "--scheduler", "http://127.0.0.1:1", "--dir", dir], more].concat(), input)
    };
    assert!(enrol(&[], "").contains("--token-file <FILE>|--token <TOKEN>"));
    assert!(enrol(&["--token", "a", "--token-file", "-"], "").contains("cannot be used with"));
    for (file, input, said) in [
        ("-", " \n", "--token-file: standard input is empty: it must hold the token alone"),
        ("-", "a b\n", "--token-file: standard input holds more than one word, and must hold the token alone"),
        ("missing", "", "--token-file: read missing: No such file"),
        // Nobody listens there: it was taken.
        ("-", "abc\n", "connect the scheduler at http://127.0.0.1:1"),
    ] {
        let refusal = enrol(&["--token-file", file], input);
        assert!(refusal.contains(said), "{refusal}");
    }
}
