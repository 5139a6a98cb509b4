//! `landfall report hosts`: lists the other sites to which a batch's sites link.

use clap::Args;
use landfall_proto::v1::{self, HostRow, HostsRequest};

use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::filters::{TimeArgs, timestamp};
use crate::cli::output::streamed::{print_rows, uncounted_bar};
use crate::cli::output::{Column, FormatArgs, Row, View, count_cell, yes_cell};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall report hosts --batch autumn --min-sites 10
  landfall report hosts --batch autumn --unlisted --quiet | landfall sites submit - --batch winter
  landfall report hosts --batch autumn --format csv > hosts.csv

Hosts are listed by name. --since and --until select links by the time of the outcome that first named them.")]
pub(in crate::cli) struct HostsArgs {
    /// The batch
    #[arg(long, value_name = "NAME")]
    batch: String,
    /// Only hosts to which at least this many sites link
    #[arg(long, value_name = "N", default_value_t = 1)]
    min_sites: u32,
    /// Only hosts that are not yet sites, by name or origin
    #[arg(long)]
    unlisted: bool,
    #[command(flatten)]
    time: TimeArgs,
    /// Maximum number of hosts; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u64,
    #[command(flatten)]
    format: FormatArgs<HostRow>,
}

impl HostsArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { batch, min_sites, unlisted, time, limit, format } = self;
        let (since, until) = (time.since.map(timestamp), time.until.map(timestamp));
        let request = HostsRequest { batch, min_sites, unlisted, limit, since, until };
        let client = Client::connect(connection).await?;
        let stream = client.answer(client.reports().hosts(request).await)?;
        let row = |row: HostRow| {
            let more = row.more;
            (row, more)
        };
        print_rows(&client, stream, uncounted_bar(), row, "no discovered host matches\n", &format).await
    }
}

impl Row for v1::HostRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("host", |row, _| row.host.clone()),
        (">sites", |row, _| count_cell(row.sites)),
        ("example", |row, _| row.example.clone()),
        ("found", |row, view| view.when(row.found_at)),
        ("listed", |row, _| yes_cell(row.listed)),
    ];

    fn name(&self, _: &View) -> String {
        self.host.clone()
    }
}
