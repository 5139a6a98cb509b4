//! Checks this machine's clock: whether it is synchronised, and how far it differs from the
//! database's clock.

use std::process::Stdio;

use chrono::TimeDelta;
use tokio::process::Command;

use super::check_result::CheckResult;
use super::time_limit::in_time;

const CHECK: &str = "clock";
/// Maximum difference between the clocks of two machines. The same limit applies to agents' clocks.
/// If a clock is wrong, valid certificates may be refused, and logs of several machines cannot be
/// compared.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::seconds(60);

/// Whether the kernel reports that the clock is synchronised; `None` if unknown.
///
/// Reading the kernel's flag with `adjtimex` would need unsafe code. Therefore systemd's program
/// `timedatectl` is run, which prints the flag.
pub(super) async fn synchronised() -> Option<bool> {
    let mut asked = Command::new("timedatectl");
    asked.args(["show", "--property=NTPSynchronized", "--value"]);
    asked.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let said = in_time(CHECK, asked.output()).await.ok()?.ok()?;
    match said.stdout.trim_ascii() {
        b"yes" => Some(true),
        b"no" => Some(false),
        _ => None,
    }
}

/// Judges the clock. `offset` is how far this machine's clock is ahead of the database's; `None` if
/// unknown.
pub(super) fn judge(synchronised: Option<bool>, offset: Option<TimeDelta>) -> CheckResult {
    let difference = offset.map(|offset| {
        let seconds = offset.as_seconds_f64().abs();
        format!("{seconds:.1} s from the database's clock")
    });
    let kernel = synchronised.map(|synchronised| if synchronised { "synchronised" } else { "not synchronised" });
    let parts: Vec<String> = kernel.map(str::to_owned).into_iter().chain(difference).collect();
    let text = parts.join(", ");
    let remedy = "synchronise the clock by NTP, for example with Debian's package systemd-timesyncd";
    if offset.is_some_and(|offset| offset.abs() > CLOCKS_DIFFER) {
        return CheckResult::wrong(CHECK, text, format!("{remedy}, on this machine and the database's"));
    }
    match (synchronised, text.is_empty()) {
        (Some(false), _) => CheckResult::note(CHECK, text, remedy),
        (_, true) => CheckResult::skip(CHECK, "whether it is synchronised is unknown: systemd does not say"),
        _ => CheckResult::ok(CHECK, text),
    }
}
