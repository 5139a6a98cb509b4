//! `landfall agents tag`: adds and removes an agent's tags.

use clap::Args;
use landfall_proto::v1::TagAgentRequest;

use crate::app::exit::{print, usage};
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;

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
