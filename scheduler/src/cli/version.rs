//! `landfall version`: prints the version of this program, and the version of the scheduler that
//! commands would use.

use clap::Args;
use landfall_proto::v1::ShowSchedulerRequest;
use serde::Serialize;
use tonic::Code;

use super::ConnectionArgs;
use super::connection::Client;
use super::output::ShowFormatArgs;
use crate::app::exit::sentence;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall version --format json")]
pub(super) struct VersionArgs {
    #[command(flatten)]
    format: ShowFormatArgs,
}

#[derive(Debug, Default, Serialize)]
struct Versions {
    version: &'static str,
    /// The URL of the scheduler that answered; `None` if no scheduler is known or none answers.
    scheduler: Option<String>,
    scheduler_version: Option<String>,
    /// The reason why the scheduler's version is missing.
    problem: Option<String>,
}

impl VersionArgs {
    /// Prints the versions. If the scheduler cannot be reached, the output states the problem, but
    /// the command succeeds.
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { format } = self;
        let own = Versions { version: crate::VERSION, ..Versions::default() };
        let shown = match Client::connect(connection).await {
            Err(error) => Versions { problem: Some(sentence(&error)), ..own },
            Ok(client) => {
                let asked = client.fleet().show_scheduler(ShowSchedulerRequest {}).await;
                let (version, problem) = match asked {
                    Ok(answer) => (Some(answer.into_inner().version), None),
                    Err(status) if status.code() == Code::Unimplemented => {
                        (None, Some("it does not report its version because it is older than this program".to_owned()))
                    }
                    Err(status) => (None, Some(sentence(&client.refusal(&status)))),
                };
                Versions { scheduler: Some(client.url().to_owned()), scheduler_version: version, problem, ..own }
            }
        };
        format.print(&shown, |shown, _| Ok(text(shown)))
    }
}

fn text(shown: &Versions) -> String {
    let Versions { scheduler, scheduler_version, problem, .. } = shown;
    let at = scheduler.as_ref().map(|url| format!(" at {url}")).unwrap_or_default();
    let said = scheduler_version.as_ref().or(problem.as_ref()).map_or("unknown", String::as_str);
    format!("landfall   {}\nscheduler  {said}{at}\n", crate::LONG_VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_says_its_version_or_it_is_said_why_not() {
        let answers = Versions {
            scheduler: Some("http://127.0.0.1:7171".to_owned()),
            scheduler_version: Some("0.1.0+f2acb2d8".to_owned()),
            ..Versions::default()
        };
        assert!(
            text(&answers).ends_with("\nscheduler  0.1.0+f2acb2d8 at http://127.0.0.1:7171\n"),
            "{}",
            text(&answers)
        );
        let nobody = Versions { problem: Some("no scheduler answers".to_owned()), ..Versions::default() };
        assert!(text(&nobody).ends_with("\nscheduler  no scheduler answers\n"), "{}", text(&nobody));
    }
}
