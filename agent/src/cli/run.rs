//! `landfall-agent run`: runs the agent until a signal stops it. `doctor` takes the same
//! arguments, and other commands find the configuration as this command does.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use ipnet::IpNet;
use landfall_proto::traces::Collector;
use tokio_util::sync::CancellationToken;

use super::exit;
use super::folder_owner::refuse_to_run_for_another;
use super::signals::stop_on_signals;
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
