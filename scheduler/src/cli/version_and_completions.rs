//! `landfall version|completions|man`: prints the versions of this program and of the scheduler,
//! completions for shells, and pages of the manual.
//!
//! `landfall completions SHELL` prints a script. The script runs `landfall` with [`VARIABLE`] set
//! whenever the user presses the tab key.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, FromArgMatches};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use landfall_proto::v1::{ListAgentsRequest, ListBatchesRequest, ShowSchedulerRequest};
use serde::Serialize;
use tonic::Code;

use super::ConnectionArgs;
use super::agents::list_and_show;
use super::connection::Client;
use super::output::ShowFormatArgs;
use crate::app::exit::{print, sentence};
use crate::app::server_certificate::install_crypto;
use crate::model::Strategy;

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

/// The environment variable that a shell's script sets to request completions.
const VARIABLE: &str = "LANDFALL_COMPLETE";
/// Time limit for the scheduler's answer, because the user waits for it at each press of the tab
/// key.
const PATIENCE: Duration = Duration::from_secs(1);
/// Makes the first press of the tab key complete a word. Without this line, zsh would only load the
/// script from its folder at the first press.
const ZSH_FIRST: &str = "if [ \"$funcstack[1]\" = _landfall ]; then _clap_dynamic_completer_landfall \"$@\"; fi\n";
/// Maximum number of batches requested, newest first.
const MOST_BATCHES: u64 = 1000;

/// A function that builds clap's command `landfall` with all its subcommands.
type Landfall = fn() -> clap::Command;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  source <(landfall completions bash)                          in ~/.bashrc
  landfall completions zsh > ~/.zfunc/_landfall                with ~/.zfunc in fpath
  landfall completions fish | source                           in ~/.config/fish/config.fish

The Debian package installs them. Names come from the scheduler; if it does not answer within a second, none
are offered.")]
pub(super) struct CompletionsArgs {
    /// The shell
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

impl CompletionsArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let shells = Shells::builtins();
        let shell = shells.completer(&self.shell).context("no completions for this shell")?;
        let mut script = Vec::new();
        shell.write_registration(VARIABLE, "landfall", "landfall", "landfall", &mut script)?;
        let mut script = String::from_utf8(script)?;
        if self.shell == "zsh" {
            script.push_str(ZSH_FIRST);
        }
        print(&script)
    }
}

/// If a shell's script requests completions, prints them and exits.
pub(super) fn answer_shell(landfall: Landfall) {
    CompleteEnv::with_factory(|| with_names(landfall(), landfall)).var(VARIABLE).complete();
}

pub(super) fn write_manual(landfall: clap::Command, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(landfall, folder))
        .with_context(|| format!("write the manual into {}", folder.display()))
}

/// Adds completions of names to flags and arguments. An argument is recognised by its clap
/// identifier, which has the same meaning in all commands.
fn with_names(command: clap::Command, landfall: Landfall) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = command.mut_args(|arg| match arg.get_id().as_str() {
        "batch" | "batches" => arg.add(ArgValueCompleter::new(move |begun: &OsStr| batches(landfall, begun))),
        "agent" | "name" | "names" | "other" => {
            arg.add(ArgValueCompleter::new(move |begun: &OsStr| agents(landfall, begun)))
        }
        "strategy" => arg.add(ArgValueCompleter::new(strategies)),
        _ => arg,
    });
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, |one| with_names(one, landfall)))
}

fn batches(landfall: Landfall, begun: &OsStr) -> Vec<CompletionCandidate> {
    let asked = asked(landfall, async |client| {
        let request = ListBatchesRequest { limit: MOST_BATCHES, ..ListBatchesRequest::default() };
        let listed = client.answer(client.sites().list_batches(request).await)?;
        Ok(listed.batches.into_iter().map(|batch| batch.name).collect())
    });
    beginning(asked, begun)
}

fn agents(landfall: Landfall, begun: &OsStr) -> Vec<CompletionCandidate> {
    let asked = asked(landfall, async |client| {
        let listed = list_and_show::agents(client, &ListAgentsRequest::default(), 0).await?;
        Ok(listed.agents.into_iter().map(|agent| agent.name).collect())
    });
    beginning(asked, begun)
}

fn strategies(begun: &OsStr) -> Vec<CompletionCandidate> {
    beginning(Strategy::ALL.iter().map(ToString::to_string), begun)
}

fn beginning(names: impl IntoIterator<Item = String>, begun: &OsStr) -> Vec<CompletionCandidate> {
    let begun = begun.to_string_lossy();
    names.into_iter().filter(|name| name.starts_with(&*begun)).map(CompletionCandidate::new).collect()
}

/// Asks a scheduler for names. The scheduler comes from the typed flags, the environment or
/// client.toml.
fn asked(landfall: Landfall, ask: impl AsyncFnOnce(&Client) -> anyhow::Result<Vec<String>>) -> Vec<String> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    install_crypto();
    let connection = connection(landfall(), std::env::args_os().skip_while(|word| word != "--").skip(1));
    let asking = async { ask(&Client::connect(&connection).await?).await };
    let names = runtime.block_on(async { tokio::time::timeout(PATIENCE, asking).await });
    // Do not wait for background tasks: a pending name resolution would delay the answer.
    runtime.shutdown_background();
    names.ok().and_then(Result::ok).unwrap_or_default()
}

/// The connection flags in a command line that the user has not finished typing.
fn connection(landfall: clap::Command, words: impl Iterator<Item = std::ffi::OsString>) -> ConnectionArgs {
    let typed = landfall.ignore_errors(true).try_get_matches_from(words).ok();
    typed.and_then(|typed| ConnectionArgs::from_arg_matches(&typed).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{command, for_manual};

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

    #[test]
    fn every_command_has_a_page_of_the_manual() {
        fn pages(command: &clap::Command, name: &str, told: &mut Vec<String>) {
            told.push(format!("{name}.1"));
            for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
                pages(command, &format!("{name}-{}", command.get_name()), told);
            }
        }
        let folder = tempfile::tempdir().unwrap();
        write_manual(for_manual(), folder.path()).unwrap();
        let mut written: Vec<String> =
            fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        let mut expected = Vec::new();
        pages(&for_manual(), "landfall", &mut expected);
        written.sort();
        expected.sort();
        assert_eq!(written, expected);
        assert!(written.len() > 40 && written.iter().all(|name| !name.contains("-help")), "{written:?}");
        let page = fs::read_to_string(folder.path().join("landfall-agents-list.1")).unwrap();
        assert!(page.contains("carrier") && page.contains(".TH"), "{page}");
    }

    #[test]
    fn names_are_completed_wherever_one_is_asked_for() {
        fn completed(command: &clap::Command, found: &mut Vec<String>) {
            for arg in command.get_arguments().filter(|arg| arg.get::<ArgValueCompleter>().is_some()) {
                found.push(format!("{} {}", command.get_name(), arg.get_id()));
            }
            command.get_subcommands().for_each(|command| completed(command, found));
        }
        let mut found = Vec::new();
        completed(&with_names(command(), command), &mut found);
        for expected in ["submit batch", "submit strategy", "wait batches", "drain name", "set names", "events agent"] {
            assert!(found.iter().any(|one| one == expected), "{expected}: {found:?}");
        }
    }

    #[test]
    fn an_unfinished_line_names_its_scheduler() {
        let typed = ["landfall", "batches", "show", "--data-dir", "d", "--scheduler", "http://127.0.0.1:1", ""];
        let connection = connection(command(), typed.into_iter().map(Into::into));
        assert_eq!(connection.data_dir.as_deref(), Some(Path::new("d")));
        assert_eq!(connection.scheduler, ["http://127.0.0.1:1"]);
    }
}
