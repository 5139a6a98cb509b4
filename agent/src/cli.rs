//! The command line: `run`, `enrol`, `doctor`, `probe` and `crawl`.

use std::fs::File;
use std::io::{Read, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ipnet::IpNet;
use landfall_proto::log::JsonLines;
use landfall_proto::traces::Collector;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::cli::doctor::examine;
use crate::config::{self, Config};
use crate::crawl::external::program;
use crate::disk::folder;
use crate::net::guard::parse_network;
use crate::session::enrol::{Enrolment, enrol};

mod crawl;
pub(crate) mod doctor;
pub(crate) mod exit;
mod policy;
mod probe;
mod progress;
mod request;

/// Number of worker threads of the tokio runtime. Two are enough, because an agent mostly waits for
/// the network. The number is small because thirty agents may share one machine.
const WORKERS: usize = 2;
/// Maximum number of bytes to read from a token file. A token has 64 bytes.
const MOST_TOKEN: u64 = 4096;
/// The systemd unit that the Debian package installs.
const UNIT: &str = "/lib/systemd/system/landfall-agent.service";
/// This folder exists if the machine was booted with systemd (`sd_booted(3)`).
const SYSTEMD_RUNS: &str = "/run/systemd/system";

/// The Landfall agent: measures and crawls web sites for a Landfall scheduler.
#[derive(Debug, Parser)]
#[command(name = "landfall-agent", version = crate::LONG_VERSION, propagate_version = true, after_help = exit::TABLE)]
struct Cli {
    /// What to log: a level (error, warn, info, debug or trace), or a tracing filter.
    #[arg(long, env = "LANDFALL_LOG", default_value = "info", global = true)]
    log: String,
    /// The format of log lines on standard error: for people, or one JSON object per line.
    #[arg(long, env = "LANDFALL_LOG_FORMAT", value_name = "FORMAT", default_value = "text", global = true)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent: measure and crawl for the scheduler at which it is enrolled.
    Run(RunArgs),
    /// Exchange a one-time token for a credential.
    Enrol(EnrolArgs),
    /// Check all that the agent needs: scheduler, credential, clock, beacon, name server, disks.
    /// The exit code is 1 if a check fails.
    Doctor(RunArgs),
    /// Measure the round trip to a URL, and print a line for each sample.
    Probe(probe::ProbeArgs),
    /// Crawl one site, and print the outcome.
    Crawl(crawl::CrawlArgs),
    /// Print the completions of a shell. The Debian package installs those of bash, zsh and fish.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write a page of the manual for each command into a folder.
    #[command(hide = true)]
    Man {
        /// The folder.
        folder: PathBuf,
    },
}

/// Where an agent's files are, and which networks it may connect to beside public addresses.
#[derive(Debug, Args)]
struct RunArgs {
    /// The agent's folder [default: /var/lib/landfall-agent for root and for the folder's owner,
    /// otherwise ~/.local/share/landfall-agent]
    #[arg(long, env = "LANDFALL_AGENT_DIR", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The configuration file [default: agent.toml in the agent's folder]. Relative paths in it
    /// start at --dir, or at the file's own folder without --dir.
    #[arg(long, env = "LANDFALL_AGENT_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// A network that may be probed and crawled although it is not public; may be repeated.
    #[arg(long, value_name = "CIDR", value_parser = parse_network)]
    allow_net: Vec<IpNet>,
    /// Crawl sites with this command instead of the agent's own crawler [default: exec.command in
    /// the configuration]. It is split into words, and run without a shell for each leased site,
    /// with LANDFALL_URL and other variables in its environment. For a shell, write: sh -c '...'.
    #[arg(long, env = "LANDFALL_AGENT_EXEC", value_name = "COMMAND")]
    exec: Option<String>,
    /// Let Prometheus read the agent's metrics at this address, such as 127.0.0.1:7181. An address that is
    /// not loopback also needs metrics_public = true in the configuration [default: metrics in the
    /// configuration]
    #[arg(long, env = "LANDFALL_AGENT_METRICS", value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Send traces to the OTLP collector at this URL, such as http://127.0.0.1:4318 [default: otlp in
    /// the configuration]
    #[arg(long, env = "LANDFALL_OTLP", value_name = "URL")]
    otlp: Option<Collector>,
}

impl RunArgs {
    fn configuration(self) -> anyhow::Result<Config> {
        let file = self.config.unwrap_or_else(|| config_file(self.dir.clone()));
        let folder = self.dir.as_deref().or(file.parent()).unwrap_or(Path::new("."));
        let mut config = Config::load_from(&file, folder)?;
        config.allow_net.extend(self.allow_net);
        if let Some(exec) = self.exec {
            let mut command = program::words(&exec).map_err(|reason| exit::usage(format!("--exec: {reason}")))?;
            program::make_absolute(&mut command, &std::env::current_dir().context("find the current folder")?);
            config.crawl_with(command, folder);
        }
        config.metrics = self.metrics.or(config.metrics);
        config.otlp = self.otlp.or(config.otlp);
        config.validate()?;
        Ok(config)
    }
}

#[derive(Debug, Args)]
struct EnrolArgs {
    /// The scheduler's URL: https://host:port, or http:// on loopback. Separate the URLs of several
    /// schedulers by commas, or repeat the flag.
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    scheduler: Vec<String>,
    #[command(flatten)]
    token: TokenArgs,
    /// SHA-256 of the scheduler's authority, as `landfall agents enrol` prints it; required for
    /// https.
    #[arg(long, value_name = "HEX")]
    ca_fingerprint: Option<String>,
    /// The agent's folder [default: /var/lib/landfall-agent for root and for the folder's owner,
    /// otherwise ~/.local/share/landfall-agent]
    #[arg(long, env = "LANDFALL_AGENT_DIR", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The URL at which site owners can contact you; every request carries it [default: the
    /// scheduler's]
    #[arg(long, env = "LANDFALL_CONTACT_URL", value_name = "URL")]
    contact_url: Option<String>,
    /// Replace an existing enrolment; the other settings in agent.toml are kept.
    #[arg(long)]
    force: bool,
}

/// The one-time token that `landfall agents enrol` made, given in one of two ways.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct TokenArgs {
    /// The file with the one-time token, or - for standard input.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The one-time token itself. Every user of the machine can read command lines, so prefer
    /// --token-file.
    #[arg(long)]
    token: Option<String>,
}

impl TokenArgs {
    fn read(self) -> anyhow::Result<String> {
        let Some(file) = self.token_file else { return Ok(self.token.unwrap_or_default()) };
        let (name, mut source): (_, Box<dyn Read>) = match file.as_os_str() == "-" {
            true => ("standard input".to_owned(), Box::new(std::io::stdin())),
            false => {
                let name = file.display().to_string();
                let opened = File::open(&file).with_context(|| format!("--token-file: read {name}"))?;
                (name, Box::new(opened))
            }
        };
        let mut text = String::new();
        let read = source.by_ref().take(MOST_TOKEN).read_to_string(&mut text);
        read.with_context(|| format!("--token-file: read {name}"))?;
        let mut words = text.split_whitespace();
        match (words.next(), words.next()) {
            (Some(token), None) => Ok(token.to_owned()),
            (None, _) => Err(exit::usage(format!("--token-file: {name} is empty; it must contain only the token"))),
            (Some(_), Some(_)) => Err(exit::usage(format!(
                "--token-file: {name} contains more than one word; it must contain only the token"
            ))),
        }
    }
}

pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command on a suitable tokio runtime, and returns the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut builder = match cli.command {
        // `crawl` rarely has two tokio tasks to run at the same time, so a second thread costs more
        // than it gains.
        Command::Crawl(_) => Builder::new_current_thread(),
        Command::Run(_) | Command::Enrol(_) | Command::Doctor(_) | Command::Probe(_) => Builder::new_multi_thread(),
        Command::Completions { .. } | Command::Man { .. } => Builder::new_current_thread(),
    };
    let runtime = builder.worker_threads(WORKERS).enable_all().build();
    exit::report(runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let result = runtime.block_on(cli.run());
        runtime.shutdown_background();
        result
    }))
}

impl Cli {
    async fn run(self) -> anyhow::Result<()> {
        start_log(&self.log, self.log_format)?;
        match self.command {
            Command::Run(args) => run(args).await,
            Command::Enrol(args) => enrol_agent(args).await,
            Command::Doctor(args) => doctor(args).await,
            Command::Probe(args) => probe::run(args).await,
            Command::Crawl(args) => crawl::run(args).await,
            Command::Completions { shell } => {
                clap_complete::generate(shell, &mut command(), "landfall-agent", &mut std::io::stdout());
                Ok(())
            }
            Command::Man { folder } => write_manual(&folder),
        }
    }
}

/// Writes a manual page for each command into a folder.
fn write_manual(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command(), folder))
        .with_context(|| format!("write the manual into {}", folder.display()))
}

/// Writes the log lines that pass the filter to standard error.
fn start_log(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let targets = filter.parse::<Targets>();
    let targets = targets.map_err(|error| exit::usage(format!("--log: '{filter}' is not a log filter: {error}")))?;
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(console::colors_enabled_stderr())
        .with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(targets);
    match format {
        LogFormat::Text => registry.with(lines).init(),
        LogFormat::Json => registry.with(lines.event_format(JsonLines::default())).init(),
    }
    Ok(())
}

async fn run(args: RunArgs) -> anyhow::Result<()> {
    refuse_to_run_for_another(&args)?;
    let config = args.configuration()?;
    let stop = CancellationToken::new();
    stop_on_signals(&stop)?;
    crate::run(config, stop).await
}

async fn doctor(args: RunArgs) -> anyhow::Result<()> {
    let results = examine(&args.configuration()?).await;
    let text: String = results.iter().map(ToString::to_string).collect();
    std::io::stdout().write_all(text.as_bytes()).context("print the results")?;
    let wrong = results.iter().filter(|result| result.is_wrong()).count();
    match wrong {
        0 => Ok(()),
        wrong => Err(exit::exit_error(exit::Code::NotDone, format!("{wrong} of {} checks failed", results.len()))),
    }
}

/// Refuses to run as root in the service's default folder, because root would create files that the
/// service cannot read. A folder given on the command line is accepted.
fn refuse_to_run_for_another(args: &RunArgs) -> anyhow::Result<()> {
    let dir = folder::default_dir();
    match folder::other_owner(&dir) {
        Some(owner) if args.dir.is_none() && args.config.is_none() => anyhow::bail!(
            "{} belongs to the user {}, and this process runs as root: start the agent with: {}",
            dir.display(),
            owner.name,
            start_command(&dir)
        ),
        _ => Ok(()),
    }
}

async fn enrol_agent(args: EnrolArgs) -> anyhow::Result<()> {
    let dir = args.dir.unwrap_or_else(folder::default_dir);
    let enrolment = Enrolment {
        schedulers: args.scheduler,
        token: args.token.read()?,
        ca_fingerprint: args.ca_fingerprint,
        dir: dir.clone(),
        contact_url: args.contact_url,
        force: args.force,
    };
    let (file, config) = enrol(&enrolment).await?;
    println!("enrolled {} ({}, {}): wrote {}", config.name, config.city, config.carrier, file.display());
    println!("{}", next_steps(&dir, &file));
    Ok(())
}

fn config_file(dir: Option<PathBuf>) -> PathBuf {
    dir.unwrap_or_else(folder::default_dir).join(config::FILE)
}

/// The text printed after an enrolment: what the operator can do next.
fn next_steps(dir: &Path, file: &Path) -> String {
    format!(
        "to keep pages, or to change other settings: {}\nstart it with: {}\ncheck it with: {}",
        file.display(),
        start_command(dir),
        as_owner(dir, "doctor")
    )
}

/// The command that starts the agent with this folder. The agent runs as the user who owns the
/// folder.
fn start_command(dir: &Path) -> String {
    let has_service = dir == folder::default_dir() && Path::new(UNIT).exists() && Path::new(SYSTEMD_RUNS).exists();
    match folder::other_owner(dir) {
        Some(_) if has_service => "systemctl enable --now landfall-agent".to_owned(),
        _ => as_owner(dir, "run"),
    }
}

/// The command line that runs the subcommand `command` of `landfall-agent` for the agent with this
/// folder. The command runs as the user who owns the folder.
fn as_owner(dir: &Path, command: &str) -> String {
    let default = dir == folder::default_dir();
    let flag = if default { String::new() } else { format!(" --dir {}", dir.display()) };
    match folder::other_owner(dir) {
        Some(owner) => format!("runuser -u {} -- landfall-agent {command}{flag}", owner.name),
        None => format!("landfall-agent {command}{flag}"),
    }
}

/// On the first signal the agent returns its leases and stops; on the second it exits immediately.
fn stop_on_signals(stop: &CancellationToken) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let stop = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if stop.is_cancelled() {
                std::process::exit(i32::from(exit::Code::Interrupted as u8));
            }
            stop.cancel();
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_an_enrolment_the_next_steps_name_the_folder() {
        let steps = next_steps(Path::new("harbin"), Path::new("harbin/agent.toml"));
        let lines: Vec<&str> = steps.lines().collect();
        assert!(lines[0].ends_with(": harbin/agent.toml"), "{steps}");
        assert_eq!(
            lines[1..],
            ["start it with: landfall-agent run --dir harbin", "check it with: landfall-agent doctor --dir harbin"]
        );
    }

    #[test]
    fn every_command_has_a_page_of_the_manual() {
        let folder = tempfile::tempdir().unwrap();
        write_manual(folder.path()).unwrap();
        for command in command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let page = folder.path().join(format!("landfall-agent-{}.1", command.get_name()));
            assert!(page.is_file(), "{}", page.display());
        }
        assert!(folder.path().join("landfall-agent.1").is_file());
    }
}
