//! `landfall report failures`: counts failed sites by reason, and by the agent that was
//! chosen last.

use clap::Args;
use landfall_proto::json::Word as _;
use landfall_proto::v1::{self, FailureRow, FailuresRequest, FailuresResponse};

use super::crawl_filter::{CrawlArgs, groups};
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::filters::one_of;
use crate::cli::output::{Column, FormatArgs, Row, View, count_cell, share_cell, text_cell};
use crate::cli::watch_flag::WatchFlag;
use crate::model::ReasonKind;
use crate::model::ReportGroup;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall report failures --batch autumn
  landfall report failures --since 24h --by agent --reason timed-out
  landfall report failures --by reason,city --format csv > failures.csv

Only the newest round of each site counts. The site's agent is the one that was chosen last.")]
pub(in crate::cli) struct FailuresArgs {
    /// Only sites that failed for this reason; may be repeated
    #[arg(long, value_name = "KIND", value_parser = one_of(ReasonKind::ALL.iter().copied(), ReasonKind::name))]
    reason: Vec<ReasonKind>,
    #[command(flatten)]
    sites: CrawlArgs,
    /// One row for each value of this property; if repeated, one for each combination [default:
    /// reason]
    #[arg(
        long,
        value_name = "WHAT",
        value_delimiter = ',',
        value_parser = one_of(ReportGroup::ALL.iter().copied(), ReportGroup::name)
    )]
    by: Vec<ReportGroup>,
    /// Maximum number of rows; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u64,
    #[command(flatten)]
    format: FormatArgs<FailureRow>,
    #[command(flatten)]
    watch: WatchFlag,
}

impl FailuresArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { reason, sites, by, limit, format, watch } = self;
        let request = FailuresRequest {
            sites: Some(sites.filter()),
            reasons: reason.into_iter().map(|kind| v1::ReasonKind::from(kind).into()).collect(),
            by: groups(&by, &[ReportGroup::Reason]),
            limit,
        };
        let ask = async |client: &Client| client.answer(client.reports().failures(request.clone()).await);
        let text = |report: &FailuresResponse, view: &View| {
            format.text(&report.rows, "no failed site matches\n", report.more, view)
        };
        watch.print(connection, &format, ask, text).await
    }
}

impl Row for v1::FailureRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("?reason", |row, _| text_cell(row.reason_kind().word())),
        ("?batch", |row, _| text_cell(&row.batch)),
        ("?city", |row, _| text_cell(&row.city)),
        ("?carrier", |row, _| text_cell(&row.carrier)),
        ("?agent", |row, _| text_cell(&row.agent)),
        ("?day", |row, _| text_cell(&row.day)),
        (">sites", |row, _| count_cell(row.sites)),
        (">share", |row, _| share_cell(row.share)),
        ("last", |row, view| view.when(row.last_failed_at)),
        ("example", |row, _| row.example.clone()),
    ];
    const NAMES: &'static str = "the groups";

    fn name(&self, _: &View) -> String {
        let groups: [&str; 6] =
            [self.reason_kind().word(), &self.batch, &self.city, &self.carrier, &self.agent, &self.day];
        groups.into_iter().filter(|group| !group.is_empty()).collect::<Vec<_>>().join(" ")
    }
}
