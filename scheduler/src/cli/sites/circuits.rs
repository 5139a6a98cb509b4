//! `landfall sites circuits|reopen`: lists sites whose circuit is open, and closes circuits.

use clap::Args;
use landfall_proto::v1::{
    ListOpenCircuitsRequest, ListOpenCircuitsResponse, OpenCircuit, ReopenSitesRequest, ReopenSitesResponse,
};

use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::filters::{PlaceArgs, TimeArgs, timestamp};
use crate::cli::output::{self, Column, Format, FormatArgs, Row, View, counted, number};
use crate::cli::watch_flag::WatchFlag;

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
    /// Maximum number of sites, newest first, up to 1000
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1000))]
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
