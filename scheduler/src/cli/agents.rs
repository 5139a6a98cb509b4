//! `landfall agents`: declares the commands, whose modules run them.

mod drain_tag_and_remove;
mod enrol;
pub(crate) mod list_and_show;
pub(super) mod reach;
pub(super) mod tokens;

use clap::Subcommand;

use self::drain_tag_and_remove::{DrainArgs, RemoveArgs, ResumeArgs, TagArgs};
use self::enrol::EnrolArgs;
use self::list_and_show::{ListArgs, ShowArgs};
use self::reach::ReachArgs;
use self::tokens::{RevokeArgs, TokensArgs};
use super::ConnectionArgs;

#[derive(Debug, Subcommand)]
pub(super) enum AgentsCommand {
    /// Make a one-time token, and print the command to run on the remote machine
    #[command(visible_alias = "enroll")]
    Enrol(EnrolArgs),
    /// List the open one-time tokens, or all that are still kept
    Tokens(TokensArgs),
    /// Revoke an open token; its agent's name becomes free again
    Revoke(RevokeArgs),
    /// List the agents
    List(ListArgs),
    /// Show one agent: its session, its crawls, its refused messages, and its latest events
    Show(ShowArgs),
    /// Show which agents reach an agent's beacon, and which beacons it reaches; for two agents, why
    /// one cannot reach the other and what to do
    Reach(ReachArgs),
    /// Drain an agent: it finishes the crawls that it has begun, and other agents get its waiting
    /// tasks
    Drain(DrainArgs),
    /// Return a draining agent to service
    Resume(ResumeArgs),
    /// Add or remove an agent's tags, which batches may require
    Tag(TagArgs),
    /// Remove an agent permanently: its credential is refused, but its history is kept
    Remove(RemoveArgs),
}

impl AgentsCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Enrol(args) => args.run(connection).await,
            Self::Tokens(args) => args.run(connection).await,
            Self::Revoke(args) => args.run(connection).await,
            Self::Show(args) => args.run(connection).await,
            Self::Reach(args) => args.run(connection).await,
            Self::Drain(args) => args.run(connection).await,
            Self::Resume(args) => args.run(connection).await,
            Self::Tag(args) => args.run(connection).await,
            Self::Remove(args) => args.run(connection).await,
            Self::List(args) => args.run(connection).await,
        }
    }
}
