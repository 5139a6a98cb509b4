//! `landfall sites cancel|retry|circuits|reopen`: cancels sites of a batch, crawls failed or
//! cancelled ones again, and lists and closes open circuits.

use clap::Args;
use landfall_proto::v1::{
    BatchChange, CancelTasksRequest, CancelTasksResponse, ListOpenCircuitsRequest, ListOpenCircuitsResponse,
    OpenCircuit, ReopenSitesRequest, ReopenSitesResponse, RetryTasksRequest, RetryTasksResponse,
};

use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::batches::change_watch::to_end;
use crate::cli::connection::Client;
use crate::cli::filters::{PlaceArgs, TimeArgs, timestamp};
use crate::cli::output::{self, Column, FormatArgs, Row, View, counted};
use crate::cli::pages::pages;
use crate::cli::watch_flag::WatchFlag;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall sites cancel www.example.cn example.org --batch autumn")]
pub(in crate::cli) struct CancelArgs {
    /// The sites, each a host or scheme://host:port
    #[arg(value_name = "HOST", required = true)]
    sites: Vec<String>,
    /// The batch
    #[arg(long, value_name = "NAME")]
    batch: String,
}

impl CancelArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        cancel(CancelTasksRequest { batch: self.batch, sites: self.sites, all: false }, connection).await
    }
}

pub(in crate::cli) async fn cancel(request: CancelTasksRequest, connection: &ConnectionArgs) -> anyhow::Result<()> {
    let client = Client::connect(connection).await?;
    let batch = request.batch.clone();
    let mut cancelled = client.answer(client.sites().cancel_tasks(request).await)?;
    if let Some(begun) = cancelled.unfinished.take() {
        let BatchChange { sites, tasks, leases, recrawls, .. } = to_end(&client, &batch, begun).await?;
        cancelled =
            CancelTasksResponse { tasks, leases, ended: sites.saturating_sub(tasks), recrawls, unfinished: None };
    }
    print(&format!("batch {batch}: {}\n", cancelled_sentence(&cancelled)))
}

fn cancelled_sentence(
    CancelTasksResponse { tasks, leases, ended, recrawls, unfinished: _ }: &CancelTasksResponse,
) -> String {
    let mut said = match tasks {
        0 if *recrawls > 0 => "no site under way".to_owned(),
        0 => "nothing changed".to_owned(),
        tasks => format!("{} cancelled", counted(*tasks, "site")),
    };
    if *leases > 0 {
        said = format!("{said}, {} under way stopped", counted(*leases, "crawl"));
    }
    if *ended > 0 {
        said = format!("{said}; {} had already ended", counted(*ended, "site"));
    }
    match recrawls {
        0 => said,
        1 => format!("{said}, and 1 is not crawled again"),
        recrawls => format!("{said}, and {recrawls} are not crawled again"),
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall sites retry www.example.cn --batch autumn
  landfall sites retry --failed --batch autumn")]
pub(in crate::cli) struct RetryArgs {
    /// The sites, each a host or scheme://host:port
    #[arg(value_name = "HOST", required_unless_present = "failed")]
    sites: Vec<String>,
    /// Every site of the batch that failed
    #[arg(long, conflicts_with = "sites")]
    failed: bool,
    /// The batch
    #[arg(long, value_name = "NAME")]
    batch: String,
}

impl RetryArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let client = Client::connect(connection).await?;
        let Self { sites, failed, batch } = self;
        let request = RetryTasksRequest { batch: batch.clone(), sites, failed };
        let mut retried = client.answer(client.sites().retry_tasks(request).await)?;
        if let Some(begun) = retried.unfinished.take() {
            retried.tasks = to_end(&client, &batch, begun).await?.tasks;
        }
        print(&format!("batch {batch}: {}\n", retried_sentence(&retried)))
    }
}

fn retried_sentence(RetryTasksResponse { tasks, open, unfinished: _ }: &RetryTasksResponse) -> String {
    let said = match tasks {
        0 => "nothing changed".to_owned(),
        1 => "1 site is crawled again".to_owned(),
        tasks => format!("{tasks} sites are crawled again"),
    };
    match open {
        0 => said,
        1 => format!("{said}; 1 site is already under way"),
        open => format!("{said}; {open} sites are already under way"),
    }
}

/// Which circuits are listed: those that meet every flag.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall sites circuits --batch autumn --since 2h")]
pub(in crate::cli) struct CircuitsArgs {
    /// Only sites of this batch
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    /// Only sites whose circuit was opened by one of this agent's crawls
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    #[command(flatten)]
    places: PlaceArgs,
    #[command(flatten)]
    time: TimeArgs,
    /// Maximum number of sites, newest first; 0: all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: u64,
    #[command(flatten)]
    format: FormatArgs<OpenCircuit>,
    #[command(flatten)]
    watch: WatchFlag,
}

impl CircuitsArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { batch, agent, places, time, limit, format, watch } = self;
        let all = batch.is_none() && agent.is_none() && places.are_unset() && time.are_unset();
        let none = if all { "no site has an open circuit\n" } else { "no site with an open circuit matches\n" };
        let request = ListOpenCircuitsRequest {
            agent: agent.unwrap_or_default(),
            batch: batch.unwrap_or_default(),
            cities: places.city,
            carriers: places.carrier,
            countries: places.country,
            since: time.since.map(timestamp),
            until: time.until.map(timestamp),
            ..ListOpenCircuitsRequest::default()
        };
        let ask = async |client: &Client| {
            pages(limit, async |limit, page_token| {
                let request = ListOpenCircuitsRequest { limit, page_token, ..request.clone() };
                client.answer(client.sites().list_open_circuits(request).await)
            })
            .await
        };
        let text =
            |listed: &ListOpenCircuitsResponse, view: &View| format.text(&listed.circuits, none, listed.more, view);
        watch.print(connection, &format, ask, text).await
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  landfall sites reopen www.example.cn\n  landfall sites reopen --all")]
pub(in crate::cli) struct ReopenArgs {
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
        print(&format!("{}\n", reopened_sentence(&reopened)))
    }
}

fn reopened_sentence(ReopenSitesResponse { sites, tasks, busy }: &ReopenSitesResponse) -> String {
    let said = match (sites, tasks, busy) {
        (0, _, 0) => "nothing changed: none of them has an open circuit".to_owned(),
        (0, ..) => "nothing changed".to_owned(),
        (sites, 0, 0) => {
            let again = "`landfall sites retry` repeats the crawl that opened the circuit";
            format!("{} reopened; {again}", counted(*sites, "site"))
        }
        (sites, tasks, _) => {
            format!("{} reopened, {} no longer waiting", counted(*sites, "site"), counted(*tasks, "task"))
        }
    };
    match busy {
        0 => said,
        busy => format!("{said}; {} in use by other changes: run the same command again", counted(*busy, "site")),
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
    fn what_changed_is_said_in_a_sentence() {
        let said = |tasks, leases, ended, recrawls| {
            cancelled_sentence(&CancelTasksResponse { tasks, leases, ended, recrawls, unfinished: None })
        };
        assert_eq!(said(3, 1, 0, 0), "3 sites cancelled, 1 crawl under way stopped");
        assert_eq!(said(0, 0, 2, 0), "nothing changed; 2 sites had already ended");
        assert_eq!(said(1, 0, 2, 2), "1 site cancelled; 2 sites had already ended, and 2 are not crawled again");
        assert_eq!(said(0, 0, 1, 1), "no site under way; 1 site had already ended, and 1 is not crawled again");
    }

    #[test]
    fn what_is_crawled_again_is_said_in_a_sentence() {
        let said = |tasks, open| retried_sentence(&RetryTasksResponse { tasks, open, unfinished: None });
        assert_eq!(said(1, 0), "1 site is crawled again");
        assert_eq!(said(0, 1), "nothing changed; 1 site is already under way");
    }

    #[test]
    fn what_was_reopened_is_said_in_a_sentence() {
        let said = |sites, tasks, busy| reopened_sentence(&ReopenSitesResponse { sites, tasks, busy });
        assert_eq!(said(2, 3, 0), "2 sites reopened, 3 tasks no longer waiting");
        assert!(said(1, 0, 0).starts_with("1 site reopened; `landfall sites retry`"));
        assert!(said(0, 0, 0).starts_with("nothing changed: none"));
        let busy = "nothing changed; 1 site in use by other changes: run the same command again";
        assert_eq!(said(0, 0, 1), busy);
    }
}
