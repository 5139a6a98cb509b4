//! `landfall agents tag`: what batches may ask for.

use clap::Args;
use landfall_proto::v1::TagAgentRequest;

use super::ConnectionArgs;
use super::client::Client;
use crate::exit::{print, usage};

#[derive(Debug, Args)]
pub(super) struct TagArgs {
    /// The agent
    #[arg(value_name = "NAME")]
    name: String,
    /// A tag it gets: 1 to 32 characters of a-z, 0-9, '.', '_' and '-'; may be said again, 16 tags at most in all
    #[arg(long, value_name = "TAG")]
    add: Vec<String>,
    /// A tag it loses; what waits at the agent and asks for it goes to others. May be said again
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
