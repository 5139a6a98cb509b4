//! Runs schedulers as processes, and sends requests to them with the operator's commands.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of every wait, ample even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A scheduler process; killed when dropped.
pub(crate) struct Serving(pub(crate) Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A command that has ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn landfall(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landfall"));
    command.args(args).current_dir(home).env("HOME", home).env_remove("XDG_DATA_HOME").env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts a scheduler on a free port, and waits until its `client.toml` exists.
pub(crate) fn serve(home: &Path, url: &str, data_dir: &str) -> Serving {
    serve_at(home, url, data_dir, "127.0.0.1:0")
}

pub(crate) fn serve_at(home: &Path, url: &str, data_dir: &str, listen: &str) -> Serving {
    let args = ["serve", "--database-url", url, "--data-dir", data_dir, "--listen", listen];
    let serving = Serving(landfall(home, &args).spawn().unwrap());
    until("the scheduler serves", || !client_file(home, data_dir).is_empty());
    serving
}

/// Runs a command to its end.
pub(crate) fn ask(home: &Path, args: &[&str]) -> Ran {
    ended(&mut landfall(home, args))
}

/// Runs a command to its end. Backtraces are enabled, to check that a user's mistake prints no
/// backtrace.
pub(crate) fn ended(command: &mut Command) -> Ran {
    command.env("RUST_BACKTRACE", "full").stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(!err.contains("backtrace") && !err.contains("panicked"), "{err}");
    Ran { code: output.status.code().unwrap(), out, err }
}

pub(crate) fn client_file(home: &Path, data_dir: &str) -> String {
    fs::read_to_string(home.join(data_dir).join("client.toml")).unwrap_or_default()
}

pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
