//! A short run of `lab chaos`, with every kind of fault that this machine supports. The judge must
//! find no violation.

use std::process::Command;

use serde_json::Value;

use crate::harness::blocking_beside;

#[test]
fn nothing_is_lost_or_done_twice_under_faults() {
    let _turn = blocking_beside();
    let run = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["chaos", "--sites", "150", "--faults", "30", "--seed", "1", "--format", "json"])
        .output()
        .unwrap();
    let (said, complaints) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{complaints}");
    let figures: Value = serde_json::from_str(said.trim()).unwrap();
    println!("{figures:#}");
    assert_eq!((figures["sites"].as_u64(), figures["faults"].as_u64()), (Some(150), Some(30)));
    for rule in ["lost", "double_completed", "stale_accepted", "overlap_violations", "unfinished"] {
        assert_eq!(figures[rule].as_u64(), Some(0), "{rule}: {complaints}");
    }
    assert!(figures["by_fault"].as_object().unwrap().len() >= 12, "{figures:#}");
}
