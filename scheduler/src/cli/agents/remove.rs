//! `landfall agents remove`: removes an agent permanently.

use clap::Args;
use landfall_proto::v1::{RemoveAgentRequest, RemoveAgentResponse};

use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::counted;

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
