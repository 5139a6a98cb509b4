//! `landfall sites alarms|reopen`: sites that were broken off, and letting them be crawled again.

use clap::Args;
use landfall_proto::v1::{Alarm, ListAlarmsRequest, ReopenSitesRequest, ReopenSitesResponse};

use super::ConnectionArgs;
use super::client::Client;
use super::output::{self, Column, Format, Row, View, counted};
use crate::exit::print;

#[derive(Debug, Args)]
pub(super) struct ReopenArgs {
    /// The sites, each a host or scheme://host:port
    #[arg(value_name = "HOST", required_unless_present = "all")]
    sites: Vec<String>,
    /// Every site that was broken off
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

fn sentence(ReopenSitesResponse { sites, tasks }: &ReopenSitesResponse) -> String {
    match (sites, tasks) {
        (0, _) => "nothing changed: none of them was broken off".to_owned(),
        (sites, 0) => {
            let again = "landfall sites retry makes the crawl that was broken off go again";
            format!("{} reopened; {again}", counted(*sites, "site"))
        }
        (sites, tasks) => {
            format!("{} reopened, {} no longer waiting", counted(*sites, "site"), counted(*tasks, "task"))
        }
    }
}

/// Lists the open alarms.
pub(super) async fn list(limit: u64, format: Format, view: &View, connection: &ConnectionArgs) -> anyhow::Result<()> {
    let client = Client::connect(connection).await?;
    let listed = client.answer(client.sites().list_alarms(ListAlarmsRequest { limit }).await)?;
    if listed.alarms.is_empty() && format == Format::Table {
        return print("no site is broken off\n");
    }
    output::print_rows(&listed.alarms, format, view)?;
    let shown = u64::try_from(listed.alarms.len()).unwrap_or(u64::MAX);
    if listed.total > shown && format == Format::Table {
        print(&format!("and {} more\n", output::number(listed.total - shown)))?;
    }
    Ok(())
}

impl Row for Alarm {
    const COLUMNS: &'static [Column<Self>] = &[
        ("site", |row, _| row.site.clone()),
        ("broken off", |row, view| view.when(row.since)),
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
        assert!(said(1, 0).starts_with("1 site reopened; landfall sites retry"));
        assert!(said(0, 0).starts_with("nothing changed"));
    }
}
