//! `landfall agents drain|resume|tag|remove`: takes agents out of service and puts them back, adds
//! and removes their tags, and removes agents permanently.

use std::time::Duration;

use clap::Args;
use landfall_proto::v1::{
    DrainAgentRequest, RemoveAgentRequest, RemoveAgentResponse, ResumeAgentRequest, ShowAgentRequest, TagAgentRequest,
};
use tonic::Code;

use crate::app::exit::{self, print, usage};
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::counted;

/// The interval at which `drain --wait` checks the agent.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of consecutive failed checks. Checks may fail while the scheduler restarts.
const AWAY_AT_MOST: u32 = 60;

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  landfall agents drain harbin-cernet --wait && ssh harbin systemctl stop landfall-agent")]
pub(in crate::cli) struct DrainArgs {
    /// The agent
    #[arg(value_name = "NAME")]
    name: String,
    /// Wait until the agent holds no lease
    #[arg(long)]
    wait: bool,
}

impl DrainArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { name, wait } = self;
        let client = Client::connect(connection).await?;
        let drained = client.answer(client.fleet().drain_agent(DrainAgentRequest { name: name.clone() }).await)?;
        let moved = match drained.withdrawn {
            0 => String::new(),
            tasks => format!("; {} moved to other agents", counted(tasks, "task")),
        };
        let drains = if drained.before { "is already draining" } else { "is draining" };
        match drained.leases {
            0 => return print(&format!("{name} {drains} and holds no lease{moved}\n")),
            leases if !wait => {
                return print(&format!("{name} {drains}: {} to finish{moved}\n", counted(leases, "lease")));
            }
            leases => eprintln!("{name} {drains}: {} to finish{moved}", counted(leases, "lease")),
        }
        let goes_on = || format!("{name} keeps draining: `landfall agents resume {name}` takes it back into service");
        exit::unless_interrupted(wait_until_drained(client, &name, drained.leases), goes_on).await?;
        print(&format!("{name} is drained: it holds no lease\n"))
    }
}

/// Waits until the agent holds no lease, and prints every change in the number of its leases.
async fn wait_until_drained(mut client: Client, name: &str, mut left: u64) -> anyhow::Result<()> {
    let mut away = 0;
    while left > 0 {
        tokio::time::sleep(LOOK_EVERY).await;
        let shown = client.fleet().show_agent(ShowAgentRequest { name: name.to_owned() }).await;
        let agent = match shown {
            Ok(shown) => shown.into_inner().agent.unwrap_or_default(),
            Err(status) if matches!(status.code(), Code::Unavailable | Code::Unknown) && away < AWAY_AT_MOST => {
                away += 1;
                client.move_on().await;
                continue;
            }
            Err(status) => return Err(client.refusal(&status)),
        };
        away = 0;
        if agent.draining_since.is_none() && agent.removed_at.is_none() {
            anyhow::bail!("{name} was taken back into service in the meantime");
        }
        let now = u64::from(agent.leased);
        if now != left && now > 0 {
            eprintln!("{name}: {} left", counted(now, "lease"));
        }
        left = now;
    }
    Ok(())
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ResumeArgs {
    /// The agent
    #[arg(value_name = "NAME")]
    name: String,
}

impl ResumeArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { name } = self;
        let client = Client::connect(connection).await?;
        let resumed =
            client.answer(client.fleet().resume_agent(ResumeAgentRequest { name: name.clone() }).await)?.resumed;
        print(&if resumed { format!("{name} takes work again\n") } else { format!("{name} was not draining\n") })
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall agents tag harbin-cernet --add fast --add rack-2 --remove spare")]
pub(in crate::cli) struct TagArgs {
    /// The agent
    #[arg(value_name = "NAME")]
    name: String,
    /// A tag to add: 1 to 32 characters of a-z, 0-9, '.', '_' and '-'; may be repeated, up to 16
    /// tags in all
    #[arg(long, value_name = "TAG")]
    add: Vec<String>,
    /// A tag to remove; waiting tasks that require it go to other agents. May be repeated
    #[arg(long, value_name = "TAG", allow_hyphen_values = true)]
    remove: Vec<String>,
}

impl TagArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { name, add, remove } = self;
        if add.is_empty() && remove.is_empty() {
            return Err(usage("nothing to do: give --add TAG or --remove TAG"));
        }
        let client = Client::connect(connection).await?;
        let tags =
            client.answer(client.fleet().tag_agent(TagAgentRequest { name: name.clone(), add, remove }).await)?.tags;
        let tags = if tags.is_empty() { "no tags".to_owned() } else { tags.join(" ") };
        print(&format!("{name}: {tags}\n"))
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RemoveArgs {
    /// The agent
    #[arg(value_name = "NAME")]
    name: String,
    /// Take back the leases that the agent holds; without this flag an agent with leases is not
    /// removed
    #[arg(long)]
    force: bool,
}

impl RemoveArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { name, force } = self;
        let client = Client::connect(connection).await?;
        let RemoveAgentResponse { withdrawn, leases, before } =
            client.answer(client.fleet().remove_agent(RemoveAgentRequest { name: name.clone(), force }).await)?;
        if before {
            return print(&format!("{name} was already removed\n"));
        }
        let back = if leases > 0 { format!("; {} taken back", counted(leases, "lease")) } else { String::new() };
        let moved = if withdrawn > 0 {
            format!("; {} moved to other agents", counted(withdrawn, "task"))
        } else {
            String::new()
        };
        print(&format!("{name} is removed; its credential is refused from now on{back}{moved}\n"))
    }
}
