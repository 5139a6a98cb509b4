//! The command line: parses commands and calls the modules that run them.
//!
//! `up` and `serve` run a scheduler, `backup` and `restore` open its database, `doctor`
//! examines its machine, and `simulate` needs no scheduler. All other commands are gRPC clients
//! of a scheduler. Commands print their results to standard output, and everything else to
//! standard error.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::app::address::AdvertisedAddress;
use crate::app::exit;
use crate::app::start_options::Options;
use crate::app::{tls, up};
use crate::model::contact_url::ContactUrl;
pub use crate::telemetry::VARIABLES as LOG_VARIABLES;
use crate::telemetry::{self, TelemetryArgs};
use connection::{CONNECTION, ConnectionArgs};

pub(crate) mod agents;
mod backup;
pub(crate) mod batches;
mod complete;
mod connection;
mod contact_url;
mod defaults;
mod doctor;
mod files;
mod filters;
mod flag_values;
mod landmarks;
mod operator;
pub(crate) mod output;
mod reports;
mod simulate;
pub(crate) mod sites;
pub(crate) mod status;
mod version;
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
    #[command(after_help = "\
Examples:
  landfall up                                                   for agents on this machine
  landfall up --listen 0.0.0.0:7171 --advertise s.example.org:7171 --contact-url https://example.org/crawler

On loopback the scheduler uses plaintext. On any other address it uses TLS with a private certificate authority, which it
creates at the first start, and prints the authority's fingerprint.")]
    Up(RunArgs),
    /// Run a scheduler with a Postgres server of your own
    #[command(after_help = "\
Examples:
  landfall serve --database-url postgres://u@db/landfall --data-dir one
  landfall serve --database-url postgres://u@db/landfall --data-dir two --listen 127.0.0.1:7172

Several schedulers may use one database, on one machine or several: each serves every agent and operator. Before the
second one starts, copy the first one's secrets: cp -r one/operator-token one/tls two/ (without tls if the first one listens
only on loopback).")]
    Serve(RunArgs),
    /// Write the database and secrets of a scheduler to one file; the scheduler can keep running
    #[command(after_help = "\
Examples:
  landfall backup /backups/landfall-monday.tar
  landfall backup --database-url postgres://u@db/landfall --data-dir one monday.tar

The backup is a snapshot of one moment: sites, batches, agents, measurements and the log, but not the pages,
which agents store. The file is a tar archive: manifest.json describes it, and SHA256SUMS verifies it.")]
    Backup(backup::BackupArgs),
    /// Restore a backup into an empty data directory or an empty database
    #[command(after_help = "\
Examples:
  landfall restore monday.tar --data-dir /var/lib/landfall
  landfall restore monday.tar --database-url postgres://u@db/empty --data-dir one

Stop the old scheduler first. Agents reconnect by themselves if the restored scheduler has the old one's address. Everything
that happened after the backup is lost; the command ends by printing what that means.")]
    Restore(backup::RestoreArgs),
    /// Show the state of everything: schedulers, database, agents, map, batches, and what needs
    /// attention
    #[command(after_help = "\
Examples:
  landfall status --watch
  landfall status --check > /dev/null || mail -s 'landfall needs attention' operator@example.org < /dev/null
  landfall status -o json | jq '.attention[].command'

Each finding below `attention` is followed by the command that helps. A finding with `!` is urgent: work has stopped, or is
about to.")]
    Status(status::StatusArgs),
    /// Enrol, list and show agents; take them out of service, and put them back
    #[command(subcommand)]
    Agents(agents::AgentsCommand),
    /// Choose and list the landmarks: the agents that sites are measured from
    #[command(subcommand)]
    Landmarks(landmarks::LandmarksCommand),
    /// Show the map of the network, and fit it again
    #[command(subcommand)]
    Embedding(landmarks::embedding::EmbeddingCommand),
    /// Set and show the contact URL that every request carries
    #[command(subcommand)]
    Contact(contact_url::ContactCommand),
    /// Replace the operator's token
    #[command(subcommand)]
    Operator(operator::OperatorCommand),
    /// Submit, watch, show, cancel and retry sites
    #[command(subcommand)]
    Sites(sites::SitesCommand),
    /// List, show and cancel batches
    #[command(subcommand)]
    Batches(batches::BatchesCommand),
    /// Print the log of all transitions of sites, leases, sessions, agents and terms
    #[command(after_help = "\
Examples:
  landfall events --follow
  landfall events --site www.example.cn --batch autumn
  landfall events --agent harbin-cernet --newest 1000 --format json")]
    Events(reports::events::EventsArgs),
    /// Explain why a site has its agent, or no agent: every choice with its inputs
    #[command(after_help = "\
Examples:
  landfall explain www.example.cn
  landfall explain www.example.cn --batch autumn --at 1017 --format json")]
    Explain(sites::explain::ExplainArgs),
    /// Predict the performance of a changed fleet from the sites already located: mean round trip,
    /// makespan, each agent's load
    #[command(after_help = "\
Examples:
  landfall plan                                                            the fleet as it is
  landfall plan --add city=Chengdu,carrier=Telecom,near=www.example.cn
  landfall plan --remove harbin-cernet --add city=Harbin,carrier=Unicom,near=harbin-cernet,slots=8
  landfall plan --suggest 3                                                where the next agents would help most

It changes nothing. Distances come from the map; each located site counts as crawled once.")]
    Plan(reports::plan::PlanArgs),
    /// Report on assignments, agents, throughput, accuracy, failures and linked hosts
    #[command(subcommand)]
    Report(reports::ReportCommand),
    /// Evaluate the map and the strategies on measured round trips; needs no scheduler
    #[command(after_help = "\
Examples:
  landfall simulate --matrix rtt.csv.gz                                    thirty agents, nine of them landmarks
  landfall simulate --matrix rtt.csv.gz --landmarks 15 --format json
  landfall simulate --matrix rtt.csv.gz --strategy gnp-top3,gnp-confirmed --dump pairs.csv")]
    Simulate(simulate::SimulateArgs),
    /// Check what a scheduler needs: configuration, data directory, database, port, name,
    /// certificates, clock, agents. The exit code is 1 if a check fails
    #[command(after_help = "\
Examples:
  landfall doctor                                          before the first start, or while a scheduler runs
  landfall doctor --config landfall.toml --data-dir data   with the same options as `up` or `serve`
  landfall doctor --scheduler https://203.0.113.5:7171 --ca ca.pem --token-file token -o json

It changes nothing, and ends within 15 s. Without --config it reads /etc/landfall/landfall.toml if the data directory is
/var/lib/landfall. On a machine without that directory, --scheduler checks the scheduler from outside. Each line is ok, note
(it works, but could be better), skip (not checked), or WRONG.")]
    Doctor {
        #[command(flatten)]
        scheduler: SchedulerArgs,
        #[command(flatten)]
        doctor: doctor::DoctorArgs,
    },
    /// Print the version of this program, and of the scheduler if one answers
    #[command(after_help = "Example:\n  landfall version --format json")]
    Version(output::ShowFormatArgs),
    /// Print completions for a shell; they also complete the names of batches and agents
    #[command(after_help = "\
Examples:
  source <(landfall completions bash)                          in ~/.bashrc
  landfall completions zsh > ~/.zfunc/_landfall                with ~/.zfunc in fpath
  landfall completions fish | source                           in ~/.config/fish/config.fish

The Debian package installs them. Names come from the scheduler; if it does not answer within a second, none
are offered.")]
    Completions(complete::CompletionsArgs),
    /// Write a manual page for each command into a folder
    #[command(hide = true)]
    Man {
        /// The folder
        folder: PathBuf,
    },
}

/// The flags that `up`, `serve` and `doctor` have in common.
#[derive(Debug, Args)]
struct SchedulerArgs {
    /// The address to listen on [default: listen in the configuration, else 127.0.0.1:7171]
    #[arg(long, env = "LANDFALL_LISTEN", value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// The URL at which site owners can contact you; http:, https: or mailto:. Every request
    /// carries it
    #[arg(long, env = "LANDFALL_CONTACT_URL", value_name = "URL")]
    contact_url: Option<ContactUrl>,
    /// A city database in MaxMind DB format: supplies, by address, the positions of sites that no
    /// site list gives
    #[arg(long, env = "LANDFALL_GEOIP", value_name = "FILE.mmdb")]
    geoip: Option<PathBuf>,
    /// The address at which agents reach this scheduler, if it differs from the one it listens on
    #[arg(long, env = "LANDFALL_ADVERTISE", value_name = "HOST:PORT")]
    advertise: Option<AdvertisedAddress>,
    /// The configuration file (TOML)
    #[arg(long, env = "LANDFALL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The Postgres server to use [default: database_url in the configuration; without one, `up`
    /// starts a private Postgres]. Every user of the machine can read command lines, so put a
    /// password in LANDFALL_DATABASE_URL, the configuration, PGPASSWORD or ~/.pgpass instead
    #[arg(long, env = "LANDFALL_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
}

impl SchedulerArgs {
    fn options(self, connection: &ConnectionArgs) -> Options {
        let Self { listen, contact_url, geoip, advertise, config, database_url } = self;
        let data_dir = connection.data_dir.clone();
        Options { data_dir, listen, config, database_url, contact_url, geoip, advertise, ..Options::default() }
    }
}

/// The flags that `up` and `serve` have in common.
#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    scheduler: SchedulerArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    /// Replace the secrets of a shared database with those of this data directory, because the
    /// shared database's own secrets are lost
    #[arg(long)]
    replace_secrets: bool,
}

/// Runs the command line. Exits directly if the command line is invalid or asks for help.
pub fn main() -> ExitCode {
    complete::answer_shell(command);
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return exit::report(Err(error)),
    };
    defaults::set_colors(cli.color);
    let told = match &cli.command {
        Command::Up(args) | Command::Serve(args) => args.telemetry.clone(),
        _ => TelemetryArgs::default(),
    };
    telemetry::start(&told);
    tls::install_crypto();
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
                Command::Up(args) => up::up(options(&connection, args, false)?).await,
                Command::Serve(args) => up::up(options(&connection, args, true)?).await,
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
                Command::Doctor { scheduler, doctor } => doctor.run(scheduler.options(&connection), &connection).await,
                Command::Version(format) => version::run(format, &connection).await,
                Command::Completions(args) => args.run(),
                Command::Man { folder } => complete::write_manual(for_manual(), &folder),
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

fn options(connection: &ConnectionArgs, run: RunArgs, own_database: bool) -> anyhow::Result<Options> {
    connection.refuse("this command runs its own")?;
    let RunArgs { scheduler, telemetry, replace_secrets } = run;
    Ok(Options { own_database, replace_secrets, otlp: telemetry.otlp, ..scheduler.options(connection) })
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
