//! `landfall sites`: declares the commands, whose modules run them.

mod circuits;
pub(super) mod explain;
pub(super) mod list;
pub(crate) mod show;
pub(super) mod submit;

use clap::Subcommand;
use landfall_proto::v1::{ShowSiteRequest, SiteMeasurement};

use self::circuits::{CircuitsArgs, ReopenArgs};
use self::list::ListArgs;
use self::submit::SubmitArgs;
use super::ConnectionArgs;
use super::batches::cancel_and_retry::{CancelArgs, RetryArgs};
use super::batches::follow;
use super::connection::Client;
use super::output::ShowFormatArgs;

#[derive(Debug, Subcommand)]
pub(super) enum SitesCommand {
    /// Submit a site list to a batch
    #[command(after_help = "\
A list has one site per line: a host, or a URL whose path is ignored; its position may follow: HOST,LATITUDE,LONGITUDE. A
first line such as site,latitude,longitude names the columns. Blank lines and # comments are skipped.

Examples:
  landfall sites submit list.txt --batch autumn --watch
  grep '\\.cn$' list.txt | landfall sites submit - --batch china --strategy gnp-top1
  landfall sites submit list.txt --batch news --policy policy.toml --include /news/ --exclude '/*.pdf$'
  landfall sites submit list.txt --batch inland --country CN --tag fast --bytes-per-day 2000000000")]
    Submit(Box<SubmitArgs>),
    /// List the sites of a batch in order of submission, and by name within each list
    #[command(after_help = "\
Examples:
  landfall sites list --batch autumn --state failed
  landfall sites list --batch autumn --reason name-not-found --reason timed-out -o csv
  landfall sites list --batch autumn --state leased --agent harbin-cernet")]
    List(ListArgs),
    /// Follow a batch until every site has ended
    Watch {
        /// The batch
        #[arg(long, value_name = "NAME")]
        batch: String,
    },
    /// Cancel sites of a batch that have not ended; crawls under way are stopped
    #[command(after_help = "Example:\n  landfall sites cancel www.example.cn example.org --batch autumn")]
    Cancel(CancelArgs),
    /// Crawl failed or cancelled sites of a batch again, as a new round
    #[command(after_help = "\
Examples:
  landfall sites retry www.example.cn --batch autumn
  landfall sites retry --failed --batch autumn")]
    Retry(RetryArgs),
    /// List sites whose circuit is open because requests to them kept failing
    #[command(after_help = "Example:\n  landfall sites circuits --batch autumn --since 2h")]
    Circuits(CircuitsArgs),
    /// Close the open circuits of sites, so that they are crawled again
    #[command(after_help = "Examples:\n  landfall sites reopen www.example.cn\n  landfall sites reopen --all")]
    Reopen(ReopenArgs),
    /// Show everything known about one site
    Show {
        /// A host, or scheme://host:port
        #[arg(value_name = "HOST")]
        site: String,
        #[command(flatten)]
        format: ShowFormatArgs<SiteMeasurement>,
    },
}

impl SitesCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Submit(args) => submit::submit(*args, connection).await,
            Self::Watch { batch } => follow::watch(&Client::connect(connection).await?, &batch).await,
            Self::Cancel(args) => args.run(connection).await,
            Self::Retry(args) => args.run(connection).await,
            Self::List(args) => args.run(connection).await,
            Self::Circuits(args) => args.run(connection).await,
            Self::Reopen(args) => args.run(connection).await,
            Self::Show { site, format } => {
                let client = Client::connect(connection).await?;
                format.print(&client.answer(client.sites().show_site(ShowSiteRequest { site }).await)?, show::text)
            }
        }
    }
}
