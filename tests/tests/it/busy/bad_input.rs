//! Tests that invalid arguments to the lab produce one sentence that names the error, and a
//! non-zero exit code.

use std::process::Command;

/// Runs `lab demo` with invalid arguments, and returns its message.
fn refusal(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_lab")).arg("demo").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    assert!(!output.status.success(), "{arguments:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn impossible_arguments_are_refused_in_one_sentence_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = folder.path().join("rtt.csv");
    std::fs::write(&matrix, "0,1,2\n1,0,-3\n2,3,0\n").unwrap();
    let matrix = matrix.to_str().unwrap();
    let broken = folder.path().join("layout.toml");
    std::fs::write(&broken, "name = 'x'\nseed = 'y'\n").unwrap();
    let broken = broken.to_str().unwrap();
    let cases: [(&[&str], &[&str]); 5] = [
        (&["--matrix", matrix], &["rtt.csv", "row 2, column 3", "'-3' is negative"]),
        (&["--matrix", "/nowhere/rtt.csv"], &["read /nowhere/rtt.csv", "No such file"]),
        (&["--dims", "12"], &["--dims 12 asked of 9 landmarks"]),
        (&["--agents", "31"], &["30 agents, not 31"]),
        (&["--scenario", broken], &["layout.toml"]),
    ];
    for (arguments, named) in cases {
        let said = refusal(arguments);
        for name in named {
            assert!(said.contains(name), "{arguments:?}: {said}");
        }
    }
    std::fs::write(folder.path().join("rtt.csv"), "0,1\n1,0\n").unwrap();
    let small = refusal(&["--matrix", matrix]);
    assert!(small.contains("30 agents and 203 sites need 233 nodes, and the matrix has 2"), "{small}");
}
