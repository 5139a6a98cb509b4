//! `landfall report agents`: shows what each agent did.

use clap::Args;
use landfall_proto::v1::{self, AgentsReportRequest, AgentsReportResponse};

use crate::cli::ConnectionArgs;
use crate::cli::agents::service::{service_tone, service_words};
use crate::cli::connection::Client;
use crate::cli::filters::PlaceArgs;
use crate::cli::output::{self, Column, FormatArgs, Row, Tone, View, count_cell, level_cell, millis_cell, size_cell};
use crate::cli::watch_flag::WatchFlag;

#[derive(Debug, Args)]
pub(in crate::cli) struct AgentsArgs {
    /// Only this batch
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    /// Only this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    #[command(flatten)]
    places: PlaceArgs,
    /// Maximum number of agents; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u64,
    #[command(flatten)]
    format: FormatArgs<v1::AgentRow>,
    #[command(flatten)]
    watch: WatchFlag,
}

impl AgentsArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { batch, agent, places, limit, format, watch } = self;
        let none = if places.are_unset() { "" } else { "no agent matches\n" };
        let PlaceArgs { city: cities, carrier: carriers, country: countries } = places;
        let (batch, agent) = (batch.unwrap_or_default(), agent.unwrap_or_default());
        let request = AgentsReportRequest { batch, agent, limit, cities, carriers, countries };
        let ask = async |client: &Client| client.answer(client.reports().agents(request.clone()).await);
        let text = |report: &AgentsReportResponse, view: &View| format.text(&report.agents, none, report.more, view);
        watch.print(connection, &format, ask, text).await
    }
}

impl Row for v1::AgentRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("agent", |row, _| row.agent.clone()),
        ("city", |row, _| row.city.clone()),
        (">assigned", |row, _| count_cell(row.assigned)),
        (">complete", |row, _| count_cell(row.complete)),
        (">truncated", |row, _| count_cell(row.truncated)),
        (">failed", |row, _| count_cell(row.failed)),
        (">pages", |row, _| count_cell(row.pages)),
        (">size", |row, _| size_cell(row.bytes)),
        (">rtt ms", |row, _| millis_cell(row.mean_rtt)),
        ("+carrier", |row, _| row.carrier.clone()),
        ("+landmark", |row, _| output::yes_cell(row.landmark)),
        ("+!service", |row, _| service_words(row.service(), "see landfall agents list")),
        ("+>load", |row, _| level_cell(row.load_level)),
    ];

    fn tone(&self) -> Tone {
        service_tone(self.service())
    }
}
