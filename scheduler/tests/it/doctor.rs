//! Tests `landfall doctor` with the real binary: before the first start, beside a running
//! scheduler, and from a machine without one.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;

use serde_json::Value;

use crate::postgres::{Place, landfall_up};
use crate::serving::{Ran, ask};

/// The exit code of a command, and its checks by name, each with its state and its text.
struct Examined {
    code: i32,
    checks: BTreeMap<String, (String, String)>,
}

impl Examined {
    fn state(&self, check: &str) -> &str {
        &self.checks.get(check).unwrap_or_else(|| panic!("no {check} in {:?}", self.checks)).0
    }

    fn text(&self, check: &str) -> &str {
        &self.checks[check].1
    }

    /// The names of the checks in this state, except the checks that depend on the machine.
    fn in_state(&self, state: &str) -> Vec<&str> {
        let machine = ["clock", "disk"];
        let found =
            self.checks.iter().filter(|(check, (found, _))| found == state && !machine.contains(&check.as_str()));
        found.map(|(check, _)| check.as_str()).collect()
    }
}

fn doctor(home: &Path, args: &[&str]) -> Examined {
    let Ran { code, out, .. } = ask(home, &[&["doctor", "-o", "json"], args].concat());
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    let mut checks = BTreeMap::new();
    for check in report["checks"].as_array().unwrap() {
        let word = |field: &str| check[field].as_str().unwrap().to_owned();
        let due = matches!(word("state").as_str(), "wrong" | "note");
        assert_eq!(check["remedy"].is_string(), due, "{check}");
        checks.insert(word("check"), (word("state"), word("text")));
    }
    let wrong = checks.values().any(|(state, _)| state == "wrong");
    assert_eq!(code, i32::from(wrong), "{checks:?}");
    Examined { code, checks }
}

/// The files in a folder, with their modification times.
fn files(folder: &Path) -> BTreeMap<String, std::time::SystemTime> {
    let mut found = BTreeMap::new();
    // The files of the private Postgres change while it runs.
    for entry in fs::read_dir(folder).unwrap().flatten().filter(|entry| entry.file_name() != "postgres") {
        found.insert(entry.path().display().to_string(), entry.metadata().unwrap().modified().unwrap());
    }
    found
}

#[test]
fn before_the_first_start_nothing_is_wrong_and_nothing_is_made() {
    let place = Place::new();
    let data = place.path().join("data");
    let args = ["--data-dir", data.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let found = doctor(place.path(), &args);
    assert_eq!(found.in_state("wrong"), [""; 0], "{:?}", found.checks);
    assert!(found.text("data dir").contains("does not exist yet"), "{:?}", found.checks);
    for skipped in ["database", "fleet", "contact", "certificate"] {
        assert_eq!(found.state(skipped), "skip", "{:?}", found.checks);
    }
    assert!(!data.exists());

    let Ran { code, out, .. } = ask(place.path(), &[&["doctor"], &args[..]].concat());
    assert!(code == found.code && out.starts_with("ok     config       no file is given"), "{out}");
}

#[test]
fn beside_a_running_scheduler_it_checks_the_fleet_and_from_elsewhere_only_that() {
    let place = Place::new();
    let data = place.path().join("data");
    let up = landfall_up(place.path(), &data);
    let client: toml::Table = fs::read_to_string(data.join("client.toml")).unwrap().parse().unwrap();
    let url = client["scheduler"].as_str().unwrap();
    let listen = url.strip_prefix("http://").unwrap();
    let args = ["--data-dir", data.to_str().unwrap(), "--listen", listen];
    let before = files(&data);
    let found = doctor(place.path(), &args);
    assert_eq!(found.in_state("wrong"), ["contact"], "{:?}", found.checks);
    assert!(found.text("data dir").contains(&format!("in use by process {}", up.0.id())), "{:?}", found.checks);
    for (check, said) in [
        ("database", "answers: Postgres 1"),
        ("schema", "it is this program's"),
        ("port", "the scheduler answers at 127.0.0.1:"),
        ("version", "the scheduler and this program"),
        ("landmarks", "every agent measures each site"),
    ] {
        assert!(found.state(check) == "ok" && found.text(check).contains(said), "{check}: {:?}", found.checks);
    }
    assert_eq!(found.state("agents"), "note", "none is enrolled");
    assert_eq!(files(&data), before, "nothing was changed");

    let contact = ["contact", "set", "https://example.org/crawler", "--data-dir", data.to_str().unwrap()];
    assert_eq!(ask(place.path(), &contact).code, 0);
    let found = doctor(place.path(), &args);
    assert_eq!((found.in_state("wrong"), found.state("contact")), (vec![], "ok"), "{:?}", found.checks);
    let found = doctor(place.path(), &["--data-dir", data.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert!(found.state("port") == "note" && found.text("port").contains("although process"), "{:?}", found.checks);

    let token = data.join("operator-token");
    let elsewhere = ["--data-dir", "none", "--scheduler", url, "--token-file", token.to_str().unwrap()];
    let found = doctor(place.path(), &elsewhere);
    assert_eq!((found.in_state("wrong"), found.state("machine")), (vec![], "skip"), "{:?}", found.checks);
    assert!(found.text("scheduler").contains("answers: landfall") && !found.checks.contains_key("database"));
    drop(up);
    let found = doctor(place.path(), &elsewhere);
    assert!(found.state("scheduler") == "wrong" && found.text("scheduler").contains("no scheduler answers"));
}

#[test]
fn a_bad_configuration_and_a_port_of_another_program_are_faults() {
    let place = Place::new();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = held.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        // Ends every connection without an answer.
        while held.accept().is_ok() {}
    });
    let found = doctor(place.path(), &["--data-dir", "data", "--listen", &listen]);
    assert!(found.state("port") == "wrong" && found.text("port").contains("another program"), "{:?}", found.checks);
    assert_eq!(found.code, 1);

    fs::write(place.path().join("landfall.toml"), "[lease]\ngrace = \"2m\"\n").unwrap();
    let found = doctor(place.path(), &["--data-dir", "data", "--config", "landfall.toml"]);
    assert_eq!(found.state("config"), "wrong");
    assert!(found.text("config").contains("lease.grace must be 100ms to 1m, but is 2m"), "{:?}", found.checks);
}
