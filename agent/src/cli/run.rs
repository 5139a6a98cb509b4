//! `landfall-agent run`: runs the agent until a signal stops it, as the user who owns its folder.
//! Refuses root in the service's folder.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use ipnet::IpNet;
use landfall_proto::traces::Collector;
use tokio_util::sync::CancellationToken;

use super::exit::{self, stop_on_signals};
use crate::config::{self, Config, program};
use crate::disk::folder;
use crate::net::guard::parse_network;
use crate::session::AgentReplaced;

/// Where an agent's files are, and which networks it may connect to beside public addresses.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The agent's folder [default: /var/lib/landfall-agent for root and for the folder's owner,
    /// otherwise ~/.local/share/landfall-agent]
    #[arg(long, env = "LANDFALL_AGENT_DIR", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The configuration file [default: agent.toml in the agent's folder]. Relative paths in it
    /// start at --dir or, without --dir, at the file's own folder.
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
    pub(super) fn configuration(self) -> anyhow::Result<Config> {
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

pub(super) async fn run(args: RunArgs) -> anyhow::Result<()> {
    refuse_to_run_for_another(args.dir.is_some() || args.config.is_some())?;
    let config = args.configuration()?;
    let stop = CancellationToken::new();
    stop_on_signals(&stop)?;
    let ended = crate::run::run(config, stop).await;
    ended.map_err(|error| match error.downcast::<AgentReplaced>() {
        Ok(replaced) => exit::exit_error(exit::Code::Replaced, replaced.to_string()),
        Err(error) => error,
    })
}

pub(super) fn config_file(dir: Option<PathBuf>) -> PathBuf {
    dir.unwrap_or_else(folder::default_dir).join(config::FILE)
}

/// The systemd unit that the Debian package installs.
const UNIT: &str = "/lib/systemd/system/landfall-agent.service";
/// This folder exists if the machine was booted with systemd (`sd_booted(3)`).
const SYSTEMD_RUNS: &str = "/run/systemd/system";

/// Refuses to run as root in the service's default folder, because root would create files that the
/// service cannot read. `names_folder` is whether the command line gives a folder, which is
/// accepted.
fn refuse_to_run_for_another(names_folder: bool) -> anyhow::Result<()> {
    let dir = folder::default_dir();
    match folder::other_owner(&dir) {
        Some(owner) if !names_folder => anyhow::bail!(
            "{} belongs to the user {}, and this process runs as root: start the agent with: {}",
            dir.display(),
            owner.name,
            start_command(&dir)
        ),
        _ => Ok(()),
    }
}

/// The command that starts the agent with this folder. The agent runs as the user who owns the
/// folder.
pub(super) fn start_command(dir: &Path) -> String {
    let has_service = dir == folder::default_dir() && Path::new(UNIT).exists() && Path::new(SYSTEMD_RUNS).exists();
    match folder::other_owner(dir) {
        Some(_) if has_service => "systemctl enable --now landfall-agent".to_owned(),
        _ => as_owner(dir, "run"),
    }
}

/// The command line that runs the subcommand `command` of `landfall-agent` for the agent with this
/// folder. The command runs as the user who owns the folder.
pub(super) fn as_owner(dir: &Path, command: &str) -> String {
    let default = dir == folder::default_dir();
    let flag = if default { String::new() } else { format!(" --dir {}", dir.display()) };
    match folder::other_owner(dir) {
        Some(owner) => format!("runuser -u {} -- landfall-agent {command}{flag}", owner.name),
        None => format!("landfall-agent {command}{flag}"),
    }
}
