//! Tests the judge with records of chaos runs. In each run, the programs had a planted bug. The
//! judge must find each bug by the rule that the bug's patch names.
//!
//! `tests/mutants` contains the bugs as patches. `tests/histories` contains a record of a chaos run
//! with each bug, written by `ops/chaos/mutants.sh --record`. Without `--record`, the script runs the
//! programs with the planted bugs again.

use std::path::{Path, PathBuf};
use std::process::Command;

use landfall_lab::chaos::judge;
use landfall_lab::chaos::report_and_rejudge::read;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The patches and their names.
fn mutants() -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = std::fs::read_dir(folder("mutants"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), path))
        .collect();
    found.sort();
    found
}

#[test]
fn the_judge_finds_every_planted_bug() {
    let mutants = mutants();
    assert_eq!(mutants.len(), 6, "{mutants:?}");
    for (name, patch) in mutants {
        let text = std::fs::read_to_string(patch).unwrap();
        let rules = text.lines().find_map(|line| line.strip_prefix("rule: ")).unwrap();
        let history = read(&folder("histories").join(format!("{name}.json"))).unwrap();
        let violations = judge::judge(&history);
        let broken: Vec<&str> = violations.iter().map(|violation| violation.rule.name()).collect();
        assert!(rules.split(' ').any(|rule| broken.contains(&rule)), "{name}: {rules} wanted, {broken:?} found");
    }
}

#[test]
fn the_judge_finds_nothing_without_planted_bugs() {
    let history = read(&folder("histories").join("sound.json")).unwrap();
    assert_eq!(judge::judge(&history), []);
    let lost = history.events.iter().filter(|event| event.is("lease", "expired")).count();
    assert!(lost > 0, "a storm that took no lease proves nothing");
}

#[test]
fn every_planted_bug_can_still_be_planted() {
    for (name, patch) in mutants() {
        let tried = Command::new("patch")
            .args(["-p1", "--dry-run", "--force", "--directory"])
            .arg(folder(".."))
            .arg("--input")
            .arg(&patch)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&tried.stdout);
        assert!(tried.status.success(), "{name} does not apply any more:\n{said}");
    }
}
