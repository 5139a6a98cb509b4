//! `landfall sites`: declares the commands, whose modules run them.

pub(super) mod cancel_retry_and_circuits;
pub(super) mod list;
pub(crate) mod show_and_explain;
mod submit_and_watch;

use clap::Subcommand;

use self::cancel_retry_and_circuits::{CancelArgs, CircuitsArgs, ReopenArgs, RetryArgs};
use self::list::ListArgs;
use self::show_and_explain::ShowArgs;
use self::submit_and_watch::{SubmitArgs, WatchArgs};
use super::ConnectionArgs;

#[derive(Debug, Subcommand)]
pub(super) enum SitesCommand {
    /// Submit a site list to a batch
    Submit(Box<SubmitArgs>),
    /// List the sites of a batch in order of submission, and by name within each list
    List(ListArgs),
    /// Follow a batch until every site has ended
    Watch(WatchArgs),
    /// Cancel sites of a batch that have not ended; crawls under way are stopped
    Cancel(CancelArgs),
    /// Crawl failed or cancelled sites of a batch again, as a new round
    Retry(RetryArgs),
    /// List sites whose circuit is open because requests to them kept failing
    Circuits(CircuitsArgs),
    /// Close the open circuits of sites, so that they are crawled again
    Reopen(ReopenArgs),
    /// Show everything known about one site
    Show(ShowArgs),
}

impl SitesCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Submit(args) => submit_and_watch::submit(*args, connection).await,
            Self::Watch(args) => args.run(connection).await,
            Self::Cancel(args) => args.run(connection).await,
            Self::Retry(args) => args.run(connection).await,
            Self::List(args) => args.run(connection).await,
            Self::Circuits(args) => args.run(connection).await,
            Self::Reopen(args) => args.run(connection).await,
            Self::Show(args) => args.run(connection).await,
        }
    }
}
