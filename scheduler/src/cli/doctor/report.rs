//! Prints the results of the checks, each fault with its remedy below.

use serde::Serialize;

use crate::app::doctor::CheckResult;
use crate::cli::output::View;

/// The results, as printed in JSON.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) version: &'static str,
    pub(super) checks: Vec<CheckResult>,
}

/// The results as lines, with each remedy below its fault.
pub(super) fn text(results: &[CheckResult], view: &View) -> String {
    let mut text = String::new();
    for CheckResult { check, state, text: found, remedy } in results {
        text += &view.labelled(&format!("{:<5}  {check:<11}  ", state.word()), found);
        if let Some(remedy) = remedy {
            text += &view.labelled(&format!("{:<5}  {:<11}  ", "", ""), &format!("do: {remedy}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_printed_with_its_remedy_below_and_no_line_is_too_long() {
        let view = View::plain();
        let long = "every user of this machine may read ".to_owned() + &"/a/long/path ".repeat(12);
        let results = [
            CheckResult::ok("config", "good"),
            CheckResult::wrong("certificate", long, "run chmod"),
            CheckResult::skip("fleet", "no scheduler\nruns"),
        ];
        let printed = text(&results, &view);
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines[0], "ok     config       good");
        assert!(lines[1].starts_with("WRONG  certificate  every user"), "{printed}");
        assert!(lines[2].starts_with("                    /a/long"), "{printed}");
        assert_eq!(lines[lines.len() - 2], "                    do: run chmod");
        assert_eq!(lines[lines.len() - 1], "skip   fleet        no scheduler runs");
        assert!(lines.iter().all(|line| line.len() <= view.columns), "{printed}");
    }
}
