//! `landfall sites`: declares the commands, and lists and reopens sites whose circuit is open.

pub(super) mod explain;
pub(crate) mod site;
pub(super) mod submit;
pub(super) mod tasks;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use landfall_proto::v1::{
    ListOpenCircuitsRequest, ListOpenCircuitsResponse, OpenCircuit, ReopenSitesRequest, ReopenSitesResponse,
    ShowSiteRequest, SiteMeasurement,
};

use self::tasks::ListArgs;
use super::ConnectionArgs;
use super::batches::changes::{CancelArgs, RetryArgs};
use super::batches::policy::PolicyArgs;
use super::batches::watch;
use super::client::Client;
use super::filters::{PlaceArgs, TimeArgs, timestamp};
use super::output::{self, Column, Format, FormatArgs, Row, ShowFormatArgs, View, counted, number};
use super::repeat::WatchFlag;
use crate::app::exit::print;
use crate::model::Strategy;
use crate::model::constraints::ConstraintsRequest;

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
    /// List the sites of a batch in the order of submission; those of one list by name
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

#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    /// The site list; - is standard input
    #[arg(value_name = "FILE")]
    pub(super) list: PathBuf,
    /// The batch; it is created if it does not exist
    #[arg(long, value_name = "NAME")]
    pub(super) batch: String,
    /// How agents are chosen; docs/choosing.md describes every strategy [default: the batch's, or
    /// gnp-top3 for a new batch]
    #[arg(long)]
    pub(super) strategy: Option<Strategy>,
    /// Follow the batch until every site has ended
    #[arg(long)]
    pub(super) watch: bool,
    /// Report what the submission would do, and change nothing
    #[arg(long, conflicts_with = "watch")]
    pub(super) dry_run: bool,
    /// Submit the valid lines of a list that also has invalid lines
    #[arg(long)]
    pub(super) skip_invalid: bool,
    #[command(flatten)]
    pub(super) policy: PolicyArgs,
    #[command(flatten, next_help_heading = "Which agents may crawl the sites")]
    pub(super) constraints: ConstraintsRequest,
}

impl SitesCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Submit(args) => submit::submit(*args, connection).await,
            Self::Watch { batch } => watch::watch(&Client::connect(connection).await?, &batch).await,
            Self::Cancel(args) => args.run(connection).await,
            Self::Retry(args) => args.run(connection).await,
            Self::List(args) => args.run(connection).await,
            Self::Circuits(args) => args.run(connection).await,
            Self::Reopen(args) => args.run(connection).await,
            Self::Show { site, format } => {
                let client = Client::connect(connection).await?;
                format.print(&client.answer(client.sites().show_site(ShowSiteRequest { site }).await)?, site::text)
            }
        }
    }
}

/// Which circuits are listed: those that meet every flag.
#[derive(Debug, Args)]
pub(super) struct CircuitsArgs {
    /// Only sites of this batch
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    /// Only sites whose circuit a crawl of this agent opened
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    #[command(flatten)]
    places: PlaceArgs,
    #[command(flatten)]
    time: TimeArgs,
    /// Maximum number of sites, newest first, up to 1000
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
    #[command(flatten)]
    format: FormatArgs<OpenCircuit>,
    #[command(flatten)]
    watch: WatchFlag,
}

impl CircuitsArgs {
    async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { batch, agent, places, time, limit, format, watch } = self;
        let all = batch.is_none() && agent.is_none() && places.are_any() && time.are_any();
        let none = if all { "no site has an open circuit\n" } else { "no site with an open circuit matches\n" };
        let request = ListOpenCircuitsRequest {
            limit,
            agent: agent.unwrap_or_default(),
            batch: batch.unwrap_or_default(),
            cities: places.city,
            carriers: places.carrier,
            countries: places.country,
            since: time.since.map(timestamp),
            until: time.until.map(timestamp),
        };
        let ask = async |client: &Client| client.answer(client.sites().list_open_circuits(request.clone()).await);
        watch.print(connection, &format, ask, |listed, view| circuits(listed, none, &format, view)).await
    }
}

#[derive(Debug, Args)]
pub(super) struct ReopenArgs {
    /// The sites, each a host or scheme://host:port
    #[arg(value_name = "HOST", required_unless_present = "all")]
    sites: Vec<String>,
    /// Every site whose circuit is open
    #[arg(long, conflicts_with = "sites")]
    all: bool,
}

impl ReopenArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let client = Client::connect(connection).await?;
        let Self { sites, all } = self;
        let reopened = client.answer(client.sites().reopen_sites(ReopenSitesRequest { sites, all }).await)?;
        print(&format!("{}\n", sentence(&reopened)))
    }
}

fn circuits(
    listed: &ListOpenCircuitsResponse,
    none: &str,
    format: &FormatArgs<OpenCircuit>,
    view: &View,
) -> anyhow::Result<String> {
    let text = format.text(&listed.circuits, none, 0, view)?;
    Ok(match listed.total.saturating_sub(listed.circuits.len() as u64) {
        more @ 1.. if format.format() == Format::Table => format!("{text}and {} more\n", number(more)),
        _ => text,
    })
}

fn sentence(ReopenSitesResponse { sites, tasks }: &ReopenSitesResponse) -> String {
    match (sites, tasks) {
        (0, _) => "nothing changed: none of them has an open circuit".to_owned(),
        (sites, 0) => {
            let again = "`landfall sites retry` repeats the crawl that opened the circuit";
            format!("{} reopened; {again}", counted(*sites, "site"))
        }
        (sites, tasks) => {
            format!("{} reopened, {} no longer waiting", counted(*sites, "site"), counted(*tasks, "task"))
        }
    }
}

impl Row for OpenCircuit {
    const COLUMNS: &'static [Column<Self>] = &[
        ("site", |row, _| row.site.clone()),
        ("circuit open", |row, view| view.when(row.since)),
        ("agent", |row, _| row.agent.clone()),
        (">waiting", |row, _| output::count_cell(row.waiting)),
        ("~message", |row, _| row.message.clone()),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reopened_is_said_in_a_sentence() {
        let said = |sites, tasks| sentence(&ReopenSitesResponse { sites, tasks });
        assert_eq!(said(2, 3), "2 sites reopened, 3 tasks no longer waiting");
        assert!(said(1, 0).starts_with("1 site reopened; `landfall sites retry`"));
        assert!(said(0, 0).starts_with("nothing changed"));
    }
}
