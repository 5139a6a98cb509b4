//! Tests `lab bench waiting` with small databases. The tasks must keep their states, because
//! otherwise the figures are not valid.

use std::process::Command;

use crate::harness::blocking_beside;

const STANDINGS: [&str; 9] =
    ["submitted", "measuring", "random", "gnp-top3", "earliest-finish", "parked", "unmet", "quota", "done"];

/// Number of concurrent measurements. Measurements can run at the same time, because they sleep
/// most of the time.
const AT_ONCE: usize = 3;

#[test]
fn waiting_tasks_keep_their_state_during_the_measurement() {
    let _turn = blocking_beside();
    std::thread::scope(|scope| {
        for standings in STANDINGS.chunks(STANDINGS.len() / AT_ONCE) {
            scope.spawn(move || {
                let mut lab = Command::new(env!("CARGO_BIN_EXE_lab"));
                lab.args(["bench", "waiting", "--tasks", "100", "--settle", "1", "--seconds", "2"]);
                lab.args(["--standing", &standings.join(",")]);
                let output = lab.output().unwrap();
                let (printed, said) =
                    (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
                assert!(output.status.success(), "{printed}\n{said}");
                for standing in standings {
                    assert!(printed.contains(&format!("| {standing} | 100 |")), "no row of {standing}: {printed}");
                }
            });
        }
    });
}
