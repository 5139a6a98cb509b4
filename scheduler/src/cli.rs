//! The command line: parses commands and calls the modules that run them.
//!
//! `up` and `serve` run a scheduler, `backup` and `restore` open its database, `doctor`
//! examines its machine, and `simulate` needs no scheduler. All other commands are gRPC clients
//! of a scheduler. Commands print their results to standard output, and everything else to
//! standard error.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::app::exit;
use crate::app::server_certificate::install_crypto;
pub use crate::telemetry::VARIABLES as LOG_VARIABLES;
use crate::telemetry::{self, TelemetryArgs};
use connection::{CONNECTION, ConnectionArgs};

pub(crate) mod agents;
mod backup;
pub(crate) mod batches;
mod connection;
mod contact_and_operator;
mod defaults;
mod doctor_and_fleet_checks;
mod embedding;
mod files;
mod filters;
mod landmarks;
pub(crate) mod output;
mod pages;
mod reports;
mod simulate;
pub(crate) mod sites;
pub(crate) mod status;
mod up;
mod version_and_completions;
mod watch_flag;

/// Schedules crawls over a wide-area network: each site is crawled by an agent near it on the
/// network.
#[derive(Debug, Parser)]
#[command(
    name = "landfall",
    version = crate::LONG_VERSION,
    propagate_version = true,
    after_help = format!("{EXAMPLES}\n\n{}", exit::table()),
)]
struct Cli {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Colours: auto shows them on a terminal, unless NO_COLOR is set [env: LANDFALL_COLOR]
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  landfall up                                              runs a scheduler with a private database on this machine
  landfall status                                          shows the state of everything, and what needs attention
  landfall doctor                                          finds what does not work yet, and says what to do
  landfall agents enrol --city Harbin --carrier CERNET     prints the command to run on the remote machine
  landfall sites submit list.txt --batch autumn --watch
  landfall explain www.example.cn                          says why its agent was chosen
  landfall report assignments --batch autumn --format csv";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a scheduler with a private Postgres
    Up(up::UpArgs),
    /// Run a scheduler with a Postgres server of your own
    Serve(up::ServeArgs),
    /// Write the database and secrets of a scheduler to one file; the scheduler can keep running
    Backup(backup::BackupArgs),
    /// Restore a backup into an empty data directory or an empty database
    Restore(backup::RestoreArgs),
    /// Show the state of everything: schedulers, database, agents, map, batches, and what needs
    /// attention
    Status(status::StatusArgs),
    /// Enrol, list and show agents; take them out of service, and put them back
    #[command(subcommand)]
    Agents(agents::AgentsCommand),
    /// Choose and list the landmarks: the agents that sites are measured from
    #[command(subcommand)]
    Landmarks(landmarks::LandmarksCommand),
    /// Show the map of the network, and fit it again
    #[command(subcommand)]
    Embedding(embedding::EmbeddingCommand),
    /// Set and show the contact URL that every request carries
    #[command(subcommand)]
    Contact(contact_and_operator::ContactCommand),
    /// Replace the operator's token
    #[command(subcommand)]
    Operator(contact_and_operator::OperatorCommand),
    /// Submit, watch, show, cancel and retry sites
    #[command(subcommand)]
    Sites(sites::SitesCommand),
    /// List, show and cancel batches
    #[command(subcommand)]
    Batches(batches::BatchesCommand),
    /// Print the log of all transitions of sites, leases, sessions, agents and terms
    Events(reports::events::EventsArgs),
    /// Explain why a site has its agent, or no agent: every choice with its inputs
    Explain(sites::show_and_explain::ExplainArgs),
    /// Predict the performance of a changed fleet from the sites already located: mean round trip,
    /// makespan, each agent's load
    Plan(reports::plan::PlanArgs),
    /// Report on assignments, agents, throughput, accuracy, failures and linked hosts
    #[command(subcommand)]
    Report(reports::ReportCommand),
    /// Evaluate the map and the strategies on measured round trips; needs no scheduler
    Simulate(simulate::SimulateArgs),
    /// Check what a scheduler needs: configuration, data directory, database, port, name,
    /// certificates, clock, agents. The exit code is 1 if a check fails
    Doctor(doctor_and_fleet_checks::DoctorArgs),
    /// Print the version of this program, and of the scheduler if one answers
    Version(version_and_completions::VersionArgs),
    /// Print completions for a shell; they also complete the names of batches and agents
    Completions(version_and_completions::CompletionsArgs),
    /// Write a manual page for each command into a folder
    #[command(hide = true)]
    Man {
        /// The folder
        folder: PathBuf,
    },
}

/// Runs the command line. Exits directly if the command line is invalid or asks for help.
pub fn main() -> ExitCode {
    version_and_completions::answer_shell(command);
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return exit::report(Err(error)),
    };
    defaults::set_colors(cli.color);
    let told = match &cli.command {
        Command::Up(up::UpArgs { run }) | Command::Serve(up::ServeArgs { run }) => run.telemetry.clone(),
        _ => TelemetryArgs::default(),
    };
    telemetry::start(&told);
    install_crypto();
    exit::report(cli.run())
}

impl Cli {
    /// Parses the command line, and parses it again if the user set defaults in client.toml. The
    /// first parse is needed to find the data directory, which contains client.toml.
    fn read() -> anyhow::Result<Self> {
        let mut matches = command().get_matches();
        let chosen = defaults::chosen(&matches)?;
        if !chosen.is_empty() {
            matches = defaults::apply(command(), &chosen).get_matches();
        }
        Ok(Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
    }

    fn run(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
        let connection = self.connection;
        let outcome = runtime.block_on(async {
            match self.command {
                Command::Up(args) => args.run(&connection).await,
                Command::Serve(args) => args.run(&connection).await,
                Command::Backup(args) => args.run(&connection).await,
                Command::Restore(args) => args.run(&connection).await,
                Command::Status(args) => args.run(&connection).await,
                Command::Agents(command) => command.run(&connection).await,
                Command::Landmarks(command) => command.run(&connection).await,
                Command::Embedding(command) => command.run(&connection).await,
                Command::Contact(command) => command.run(&connection).await,
                Command::Operator(command) => command.run(&connection).await,
                Command::Sites(command) => command.run(&connection).await,
                Command::Batches(command) => command.run(&connection).await,
                Command::Events(args) => args.run(&connection).await,
                Command::Explain(args) => args.run(&connection).await,
                Command::Plan(args) => args.run(&connection).await,
                Command::Report(command) => command.run(&connection).await,
                Command::Simulate(args) => args.run(&connection),
                Command::Doctor(args) => args.run(&connection).await,
                Command::Version(args) => args.run(&connection).await,
                Command::Completions(args) => args.run(),
                Command::Man { folder } => version_and_completions::write_manual(for_manual(), &folder),
            }
        });
        // Do not wait for background tasks: a pending read of standard input would delay the exit.
        runtime.shutdown_background();
        outcome
    }
}

pub fn command() -> clap::Command {
    arranged(Cli::command())
}

/// The command from which the manual pages are written, without its `help` subcommands, which need
/// no pages.
fn for_manual() -> clap::Command {
    arranged(Cli::command().disable_help_subcommand(true))
}

/// Hides the connection flags in the help of subcommands that contact no scheduler.
fn arranged(mut command: clap::Command) -> clap::Command {
    // Building copies the global flags to every subcommand, so that subcommands can hide them.
    command.build();
    let shown = |command: clap::Command, of_its_own: &str| {
        command.mut_args(|arg| match arg.get_help_heading() {
            Some(CONNECTION) if arg.get_id() == of_its_own => arg.help_heading(None),
            Some(CONNECTION) => arg.hide(true),
            _ => arg,
        })
    };
    let alone = [("up", "data_dir"), ("serve", "data_dir"), ("simulate", ""), ("completions", ""), ("man", "")];
    for (name, of_its_own) in alone {
        command = command.mut_subcommand(name, |command| shown(command, of_its_own));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    fn pages(command: &mut clap::Command, name: &str, told: &mut Vec<(String, String)>) {
        told.push((name.to_owned(), command.render_long_help().to_string()));
        for command in command.get_subcommands_mut() {
            let name = format!("{name} {}", command.get_name());
            pages(command, &name, told);
        }
    }

    #[test]
    fn a_page_of_help_is_short_and_shows_the_way_to_a_scheduler_only_where_one_is_asked() {
        let mut told = Vec::new();
        pages(&mut command(), "landfall", &mut told);
        assert!(told.len() > 30);
        for (name, page) in &told {
            // clap prints the heading `Possible values:` if any value has its own help text. It
            // then prints every flag in the long form of three or more lines.
            assert!(!page.contains("Possible values:"), "{name}: {page}");
            let alone = ["up", "serve", "simulate", "completions", "man"]
                .iter()
                .any(|alone| *name == format!("landfall {alone}"));
            if !name.contains(" help") {
                assert_eq!(page.contains("--token-file"), !alone, "{name}: {page}");
                assert_eq!(page.contains("Connection:"), !alone, "{name}: {page}");
            }
        }
        for name in ["up", "serve"] {
            let page = &told.iter().find(|(told, _)| *told == format!("landfall {name}")).unwrap().1;
            assert!(page.contains("--data-dir"), "{page}");
        }
    }

    #[test]
    fn flags_for_all_commands_are_taken_on_either_side() {
        for typed in [["landfall", "--data-dir", "d", "up"], ["landfall", "up", "--data-dir", "d"]] {
            let matches = command().try_get_matches_from(typed).unwrap();
            let cli = Cli::from_arg_matches(&matches).unwrap();
            assert_eq!(cli.connection.data_dir.as_deref(), Some(std::path::Path::new("d")));
        }
    }
}
