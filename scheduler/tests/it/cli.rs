//! Tests the command line as a user sees it: runs the real binary and checks exit codes and
//! messages.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use super::serving::{ask, ended, landfall};

fn home() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_file_of_positions_that_cannot_help_ends_the_start_with_a_sentence() {
    let home = home();
    fs::write(home.path().join("cities.mmdb"), "no such thing").unwrap();
    for (file, sentence) in [
        ("missing.mmdb", "read the GeoIP file missing.mmdb"),
        ("cities.mmdb", "cities.mmdb is not in the format MaxMind DB"),
    ] {
        let ran = ask(home.path(), &["up", "--data-dir", "data", "--geoip", file]);
        assert_ne!(ran.code, 0);
        assert!(ran.err.contains(sentence), "{}", ran.err);
    }
    assert!(!home.path().join("data").exists(), "nothing was begun");
}

#[test]
fn rubbish_in_a_list_is_reported_by_line_and_nothing_is_submitted() {
    let home = home();
    let list = "\u{feff}# autumn\r\n\r\nwww.example.cn\r\nhttp://\r\nWWW.Example.CN.\r\nnot a host\r\nftp://files.example.cn\r\n";
    fs::write(home.path().join("list.txt"), list).unwrap();
    // No scheduler listens at this URL. The command must reject the list before it tries to
    // connect.
    fs::write(home.path().join("token"), "abc\n").unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let submit = ["--scheduler", &url, "--token-file", "token", "sites", "submit", "list.txt", "--batch", "autumn"];
    let ran = ask(home.path(), &submit);
    assert_eq!(ran.code, 2, "{}", ran.err);
    let lines: Vec<&str> = ran.err.lines().collect();
    for (line, text) in [(4, "http://"), (6, "not a host"), (7, "ftp://files.example.cn")] {
        let start = format!("list.txt:{line}: ");
        assert!(
            lines.iter().any(|said| said.starts_with(&start) && said.ends_with(&format!("'{text}'"))),
            "{}",
            ran.err
        );
    }
    assert_eq!(
        lines.last().copied(),
        Some("error: list.txt: 3 lines name no site; nothing was submitted: correct the list, or give --skip-invalid")
    );
    assert_eq!(ran.out, "");
}

#[test]
fn a_used_directory_is_named() {
    let home = home();
    fs::write(home.path().join("thesis.tex"), "x").unwrap();
    let ran = ask(home.path(), &["up", "--data-dir", ".", "--listen", "127.0.0.1:0"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("is not empty and was not made by landfall"), "{}", ran.err);
}

#[test]
fn configuration_mistakes_are_named_by_key() {
    let home = home();
    for (text, said) in [
        ("[lease]\nlife = \"15s\"\n", "lease.life must be at least twice lease.heartbeat_interval (10s), but is 15s"),
        ("[measure]\nsite_sample = 5\n", "landfall.toml:2: unknown field `site_sample`"),
        ("[measure]\nsite_samples = 0\n", "measure.site_samples must be 1 to 100, but is 0"),
        ("listen = \"127.0.0.1\"\n", "landfall.toml:1: "),
        ("[crawl\n", "landfall.toml:1: "),
    ] {
        fs::write(home.path().join("landfall.toml"), text).unwrap();
        let ran = ask(home.path(), &["up", "--config", "landfall.toml", "--data-dir", "data"]);
        assert_eq!(ran.code, 1, "{text}");
        assert!(ran.err.starts_with("error: landfall.toml") && ran.err.contains(said), "{text}: {}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    }
    assert!(!home.path().join("data").exists(), "nothing was made");
}

#[test]
fn a_database_that_does_not_answer_is_named_without_its_password() {
    let home = home();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("postgres://landfall:hunter2@127.0.0.1:{port}/landfall");
    let ran = ask(home.path(), &["up", "--data-dir", "data", "--listen", "127.0.0.1:0", "--database-url", &url]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(
        ran.err.starts_with(&format!("error: reach the database at 127.0.0.1:{port}: "))
            && !ran.err.contains("hunter2"),
        "{}",
        ran.err
    );
}

#[test]
fn the_version_and_the_help_are_there() {
    let home = home();
    let ran = ask(home.path(), &["--version"]);
    assert_eq!((ran.code, ran.out), (0, format!("landfall {}\n", landfall_scheduler::LONG_VERSION)));
    for command in [&["--help"][..], &["up", "--help"], &["sites", "submit", "--help"], &["agents", "enrol", "--help"]]
    {
        let ran = ask(home.path(), command);
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("Example"), "{command:?}: {}", ran.out);
    }
    let ran = ask(home.path(), &["agents", "enroll"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--city"), "{}", ran.err);
}

#[test]
fn a_simulation_writes_its_page_and_names_bad_lines_of_nodes() {
    let home = home();
    let row = |i: usize| (0..12).map(|j| (3 * i.abs_diff(j)).to_string()).collect::<Vec<_>>().join(",");
    fs::write(home.path().join("m.csv"), (0..12).map(row).collect::<Vec<_>>().join("\n")).unwrap();
    let node = |i: usize| format!("n{i}.cn,0,{i},CN,10.0.{i}.1\n");
    let nodes: String = (0..12).map(node).collect();
    let header = "name,latitude,longitude,country,address\n";
    let asked = |rest: &[&'static str]| {
        let few =
            ["simulate", "--matrix", "m.csv", "--agents", "6", "--landmarks", "4", "--seeds", "1", "--tier", "plain"];
        ask(home.path(), &[&few[..], rest].concat())
    };
    fs::write(home.path().join("nodes.csv"), header.to_owned() + &nodes).unwrap();
    let ran = asked(&["--nodes", "nodes.csv", "--html", "page.html"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("geographic") && !ran.out.contains("left out"), "{}", ran.out);
    let page = fs::read_to_string(home.path().join("page.html")).unwrap();
    assert!(page.ends_with("</html>") && page.contains("<td>prefix</td>"), "{page}");
    let alone = asked(&[]);
    assert!(alone.out.contains("left out: domain, which needs names: give --nodes FILE"), "{}", alone.out);

    for (text, sentence) in [
        (format!("{header}{nodes}x,0\n"), "nodes.csv, line 14: 2 values, but the header has 5 columns"),
        (format!("{header}n0.cn,0,999,CN,\n"), "nodes.csv, line 2: longitude: '999' is invalid"),
        (format!("{header}n0.cn,0,0,CN,\n"), "nodes.csv: nodes: the file describes 1, but the matrix has 12"),
    ] {
        fs::write(home.path().join("nodes.csv"), text).unwrap();
        let ran = asked(&["--nodes", "nodes.csv", "--html", "page.html"]);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains(sentence), "{}", ran.err);
    }
    let ran = asked(&["--html", "missing/page.html"]);
    assert!(ran.code != 0 && ran.err.contains("--html missing/page.html: create a file in its folder"), "{}", ran.err);
}

fn begun(home: &Path, args: &[&str]) -> Child {
    landfall(home, args).stderr(Stdio::piped()).spawn().unwrap()
}

fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
}

#[test]
fn a_submission_that_is_interrupted_says_that_nothing_was_submitted() {
    let home = home();
    let list = home.path().join("list.txt");
    mkfifo(&list, Mode::S_IRWXU).unwrap();
    let child = begun(home.path(), &["sites", "submit", "list.txt", "--batch", "autumn"]);
    // Opening the pipe blocks until the command has opened it for reading.
    let writer = fs::OpenOptions::new().write(true).open(&list).unwrap();
    interrupt(&child);
    let ended = child.wait_with_output().unwrap();
    drop(writer);
    assert_eq!((ended.status.code(), ended.stderr), (Some(130), b"nothing was submitted\n".to_vec()));
}

#[test]
fn a_watch_that_hears_nothing_says_so_and_when_interrupted_that_the_batch_goes_on() {
    let home = home();
    fs::write(home.path().join("token"), "abc\n").unwrap();
    // This listener accepts connections but never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let watch = ["--scheduler", &url, "--token-file", "token", "sites", "watch", "--batch", "autumn"];
    let mut child = begun(home.path(), &watch);
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    assert!(first.starts_with(&format!("no answer yet from the scheduler at {url}")), "{first}");
    interrupt(&child);
    let last = said.next().unwrap().unwrap();
    assert_eq!(last, "the batch continues: `landfall sites watch --batch autumn` follows it");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn tables_take_wide_and_help_says_what_it_adds() {
    let ran = ask(home().path(), &["agents", "list", "--help"]);
    assert!(ran.out.contains("--wide") && ran.out.contains("adds country, reached by, version, tags"), "{}", ran.out);
}

#[test]
fn names_alone_and_every_field_are_not_asked_for_together() {
    let home = home();
    for list in [&["agents", "list"][..], &["batches", "list"], &["sites", "list", "--batch", "b"]] {
        let ran = ask(home.path(), &[list, &["-q", "-o", "csv"]].concat());
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains("'--quiet' cannot be used with '--format"), "{}", ran.err);
    }
    let help = ask(home.path(), &["agents", "enrol", "--help"]).out;
    assert!(help.contains("Print only the tokens"), "{help}");
}

#[test]
fn defaults_that_are_wrong_are_named_with_their_place() {
    let home = home();
    let asked = |section: &str, variable: Option<(&str, &str)>| {
        let client = format!("scheduler = \"http://127.0.0.1:1\"\ntoken = \"t\"\n{section}");
        fs::write(home.path().join("client.toml"), client).unwrap();
        let ran = ended(landfall(home.path(), &["agents", "list", "--data-dir", "."]).envs(variable));
        (ran.code, ran.err)
    };
    for (section, sentence) in [
        ("[defaults]\nformat = \"json\"\nwidth = 3\n", "./client.toml:5: unknown field `width`, expected one of"),
        ("\n[defaults]\nformat = \"xml\"\n", "./client.toml:5: unknown variant `xml`, expected one of"),
    ] {
        let (code, said) = asked(section, None);
        assert!(code == 1 && said.starts_with("error: ") && said.contains(sentence), "{said}");
    }
    let (code, said) = asked("", Some(("LANDFALL_FORMAT", "xml")));
    assert_eq!((code, said.as_str()), (2, "error: LANDFALL_FORMAT must be one of table, json, csv, but is 'xml'\n"));
}
