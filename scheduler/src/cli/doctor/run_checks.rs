//! Decides which checks run: those of this machine and its scheduler, or those of a scheduler on
//! another machine.

use std::path::Path;

use clap::Args;
use url::Url;

use super::fleet::{self, Asked};
use super::report::{Report, text};
use crate::app::data_dir::LOCK_FILE;
use crate::app::doctor::{self, CheckResult, Examination, State, in_time};
use crate::app::exit::{Code, ended};
use crate::app::start_options::Options;
use crate::cli::connection::{self, ConnectionArgs};
use crate::cli::output::ShowFormatArgs;
use crate::cli::up::SchedulerArgs;
use crate::machine::clock::now;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall doctor                                          before the first start, or while a scheduler runs
  landfall doctor --config landfall.toml --data-dir data   with the same options as `up` or `serve`
  landfall doctor --scheduler https://203.0.113.5:7171 --ca ca.pem --token-file token -o json

It changes nothing, and ends within 15 s. Without --config it reads /etc/landfall/landfall.toml if the data directory is
/var/lib/landfall. On a machine without that directory, --scheduler checks the scheduler from outside. Each line is ok, note
(it works, but could be better), skip (not checked), or WRONG.")]
pub(in crate::cli) struct DoctorArgs {
    #[command(flatten)]
    scheduler: SchedulerArgs,
    #[command(flatten)]
    format: ShowFormatArgs,
}

impl DoctorArgs {
    /// Checks the scheduler that `up` or `serve` would run with these options.
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { scheduler, format } = self;
        let options = doctor::with_default_paths(scheduler.options(connection))?;
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
