//! `landfall agents drain|resume`: takes agents out of service and puts them back.

use std::time::Duration;

use clap::Args;
use landfall_proto::v1::{DrainAgentRequest, ResumeAgentRequest, ShowAgentRequest};
use tonic::Code;

use crate::app::exit::{self, print};
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
