//! `landfall doctor`: checks a scheduler and its machine, or a scheduler on another machine, and
//! prints what to do about each fault.

use std::path::Path;

use clap::Args;
use serde::Serialize;
use url::Url;

use super::output::ShowFormatArgs;
use super::output::View;
use super::{ConnectionArgs, connection};
use crate::app::data_dir::LOCK_FILE;
use crate::app::doctor::{self, CheckResult, Examination, State, in_time};
use crate::app::exit::{Code, ended};
use crate::app::start_options::Options;
use crate::machine::clock::now;

mod fleet;

use fleet::Asked;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    format: ShowFormatArgs,
}

/// The results, as printed in JSON.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    checks: Vec<CheckResult>,
}

impl DoctorArgs {
    /// Checks the scheduler that `up` or `serve` would run with these options.
    pub(super) async fn run(self, options: Options, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { format } = self;
        let options = doctor::with_default_paths(options)?;
        let data_dir = options.data_dir.clone().unwrap_or_default();
        let elsewhere = connection.scheduler.first().filter(|_| !data_dir.join(LOCK_FILE).exists());
        let checks = match elsewhere {
            Some(url) => from_elsewhere(url, &data_dir, connection).await,
            None => here(&options, connection).await,
        };
        let report = Report { version: crate::VERSION, checks };
        format.print(&report, |report, view| Ok(text(&report.checks, view)))?;
        let wrong = report.checks.iter().filter(|result| result.state == State::Wrong).count();
        match wrong {
            0 => Ok(()),
            wrong => Err(ended(Code::NotDone, format!("{wrong} of {} checks failed", report.checks.len()))),
        }
    }
}

/// Checks this machine, and also the fleet if the scheduler answers.
async fn here(options: &Options, connection: &ConnectionArgs) -> Vec<CheckResult> {
    let (examined, asked) = tokio::join!(doctor::examine(options), in_time("fleet", Asked::of(connection)));
    let Examination { mut results, answers, contact_url } = examined;
    match asked {
        Ok(Ok(asked)) => {
            results.extend(asked.judge());
            return results;
        }
        Ok(Err(error)) if answers => results.push(fleet::unasked(&error)),
        Err(hangs) if answers => results.push(hangs),
        _ => results.push(CheckResult::skip("fleet", "no scheduler is running, so its agents cannot be checked")),
    }
    results.push(fleet::contact(contact_url.as_deref()));
    results
}

/// Checks a scheduler on another machine, from an operator's machine.
async fn from_elsewhere(url: &str, data_dir: &Path, connection: &ConnectionArgs) -> Vec<CheckResult> {
    let text = format!(
        "{} is not a scheduler's data directory, so only the scheduler at {url} is checked; run this command on the \
         scheduler's machine to check its configuration, disk, database and certificates",
        data_dir.display()
    );
    let mut results = vec![CheckResult::skip("machine", text)];
    let ca = connection::settings(connection).ok().and_then(|settings| settings.ca);
    let certificate = async {
        let parsed = Url::parse(url).ok().filter(|url| url.scheme() == "https")?;
        let (host, port) = (parsed.host_str()?, parsed.port_or_known_default()?);
        doctor::of_scheduler(host.trim_matches(['[', ']']), port, &ca?, now()).await
    };
    let (asked, certificate) = tokio::join!(in_time("scheduler", Asked::of(connection)), certificate);
    match asked {
        Ok(Ok(asked)) => {
            results.push(asked.answers());
            results.extend(certificate);
            results.extend(asked.judge());
        }
        Ok(Err(error)) => {
            results.push(fleet::unasked(&error));
            results.extend(certificate);
        }
        Err(hangs) => results.push(hangs),
    }
    results
}

/// The results as lines, with each remedy below its fault.
fn text(results: &[CheckResult], view: &View) -> String {
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
