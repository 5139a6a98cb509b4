//! `landfall agents`: this file adds and removes agents' tags. The module `enrol` makes tokens,
//! `tokens` lists and revokes them, `list` lists agents, `show` shows one agent, `reach` shows
//! which beacons agents reach, `drain` takes agents out of service, and `remove` removes them.

pub(super) mod drain;
pub(super) mod enrol;
pub(super) mod enrol_csv;
pub(super) mod list;
pub(super) mod reach;
mod remove;
pub(crate) mod service;
pub(super) mod show;
mod tokens;

use clap::{Args, Subcommand};
use landfall_proto::v1::{AgentLease, TagAgentRequest, Way};

use self::drain::DrainArgs;
use self::enrol::EnrolArgs;
use self::list::ListArgs;
use self::remove::RemoveArgs;
use self::tokens::TokensArgs;
use super::ConnectionArgs;
use super::connection::Client;
use super::output::ShowFormatArgs;
use super::watch_flag::WatchFlag;
use crate::app::exit::{print, usage};

#[derive(Debug, Subcommand)]
pub(super) enum AgentsCommand {
    /// Make a one-time token, and print the command to run on the remote machine
    #[command(
        visible_alias = "enroll",
        after_help = "\
Examples:
  landfall agents enrol --city Harbin --carrier CERNET --country CN --latitude 45.8 --longitude 126.5
  landfall agents enrol --city 北京 --carrier 电信                       named beijing-dianxin
  landfall agents enrol --city Harbin --carrier CERNET --name harbin-cernet --replace    moves it to another machine
  landfall agents enrol --from agents.csv --format json                a token for each line; none if any line is invalid

The first line of a list names its columns: city and carrier, and optionally country, latitude, longitude, name and tags."
    )]
    Enrol(EnrolArgs),
    /// List the open one-time tokens, or all that are still kept
    Tokens(TokensArgs),
    /// Revoke an open token; its agent's name becomes free again
    #[command(after_help = "Example:\n  landfall agents revoke harbin-cernet")]
    Revoke {
        /// The agent the token was made for, or the token's id
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// List the agents
    #[command(after_help = "\
Examples:
  landfall agents list --carrier CERNET --state ready
  landfall agents list --city Harbin --city Changchun --tag fast -o csv")]
    List(ListArgs),
    /// Show one agent: its session, its crawls, its refused messages, and its latest events
    Show {
        /// The agent
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        format: ShowFormatArgs<AgentLease>,
        #[command(flatten)]
        watch: WatchFlag,
    },
    /// Show which agents reach an agent's beacon, and which beacons it reaches; for two agents, why
    /// one cannot reach the other and what to do
    #[command(after_help = "Example:\n  landfall agents reach harbin-cernet tokyo-iij")]
    Reach {
        /// The agent
        #[arg(value_name = "NAME")]
        name: String,
        /// Another agent: show both directions between the two in full
        #[arg(value_name = "OTHER")]
        other: Option<String>,
        #[command(flatten)]
        format: ShowFormatArgs<Way>,
    },
    /// Drain an agent: it finishes the crawls that it has begun, and other agents get its waiting
    /// tasks
    #[command(after_help = "\
Example:
  landfall agents drain harbin-cernet --wait && ssh harbin systemctl stop landfall-agent")]
    Drain(DrainArgs),
    /// Return a draining agent to service
    Resume {
        /// The agent
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Add or remove an agent's tags, which batches may require
    #[command(after_help = "Example:\n  landfall agents tag harbin-cernet --add fast --add rack-2 --remove spare")]
    Tag(TagArgs),
    /// Remove an agent permanently: its credential is refused, but its history is kept
    Remove(RemoveArgs),
}

impl AgentsCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Enrol(args) => args.run(connection).await,
            Self::Tokens(args) => args.run(connection).await,
            Self::Revoke { name } => tokens::revoke(name, connection).await,
            Self::Show { name, format, watch } => show::show(&name, &format, watch, connection).await,
            Self::Reach { name, other, format } => reach::show(name, other, &format, connection).await,
            Self::Drain(args) => args.run(connection).await,
            Self::Resume { name } => drain::resume(name, connection).await,
            Self::Tag(args) => args.run(connection).await,
            Self::Remove(args) => args.run(connection).await,
            Self::List(args) => args.run(connection).await,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct TagArgs {
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
