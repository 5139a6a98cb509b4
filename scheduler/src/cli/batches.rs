//! `landfall batches`: declares the commands, whose modules run them.

pub(super) mod change_watch;
pub(super) mod list_cancel_and_remove;
pub(super) mod show_and_policy;
pub(crate) mod wait_and_progress;

use clap::Subcommand;

use self::list_cancel_and_remove::{CancelArgs, ListArgs, RemoveArgs};
use self::show_and_policy::ShowArgs;
use self::wait_and_progress::WaitArgs;
use super::ConnectionArgs;

#[derive(Debug, Subcommand)]
pub(super) enum BatchesCommand {
    /// List the batches, the newest first
    List(ListArgs),
    /// Show one batch: its progress, and why sites failed
    Show(ShowArgs),
    /// Remove a batch with its results, events and discovered hosts; its sites and their measurements stay
    Remove(RemoveArgs),
    /// Wait until every site of these batches has ended; exit code 3 means that sites failed, 4
    /// that the time limit passed first
    Wait(WaitArgs),
    /// Cancel every site of a batch that has not ended; crawls under way are stopped
    Cancel(CancelArgs),
}

impl BatchesCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::List(args) => args.run(connection).await,
            Self::Show(args) => args.run(connection).await,
            Self::Wait(args) => args.run(connection).await,
            Self::Remove(args) => args.run(connection).await,
            Self::Cancel(args) => args.run(connection).await,
        }
    }
}
