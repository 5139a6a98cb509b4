//! `landfall landmarks trust`: releases an agent from quarantine.

use clap::Args;
use landfall_proto::v1::TrustAgentRequest;

use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall landmarks trust beijing-telecom")]
pub(in crate::cli) struct TrustArgs {
    /// The agent, by name
    #[arg(value_name = "NAME")]
    name: String,
}

impl TrustArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { name } = self;
        let client = Client::connect(connection).await?;
        let released =
            client.answer(client.fleet().trust_agent(TrustAgentRequest { name: name.clone() }).await)?.released;
        print(&match released {
            true => format!("{name} left quarantine; its measurements were deleted, and it measures again\n"),
            false => format!("{name} is not quarantined\n"),
        })
    }
}
