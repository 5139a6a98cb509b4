//! `landfall report accuracy`: shows how well predicted round trips agreed with measured ones.

use clap::Args;
use landfall_proto::v1::{self, AccuracyRequest, AccuracyResponse, AccuracyRow};

use super::crawl_filter::{CrawlArgs, groups};
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::filters::one_of;
use crate::cli::output::{Column, FormatArgs, Row, View, count_cell, float_cell, share_cell, text_cell};
use crate::cli::watch_flag::WatchFlag;
use crate::model::ReportGroup;

/// The properties by which rows can be grouped.
const GROUPS: [ReportGroup; 4] = [ReportGroup::City, ReportGroup::Carrier, ReportGroup::Agent, ReportGroup::Day];

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall report accuracy --since 7d
  landfall report accuracy --by day --batch autumn --format csv > accuracy.csv

An error is |predicted - measured| / measured, for the agent that crawled. The measured round trip is the crawl's; in the
columns `probed`, it is the agent's own measurement from before it was chosen. A ratio is measured / predicted.")]
pub(in crate::cli) struct AccuracyArgs {
    #[command(flatten)]
    crawls: CrawlArgs,
    /// One row for each value of this property; if repeated, one for each combination [default:
    /// city,carrier]
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = one_of(GROUPS, ReportGroup::name))]
    by: Vec<ReportGroup>,
    /// Maximum number of rows; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u64,
    #[command(flatten)]
    format: FormatArgs<AccuracyRow>,
    #[command(flatten)]
    watch: WatchFlag,
}

impl AccuracyArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { crawls, by, limit, format, watch } = self;
        let request = AccuracyRequest {
            crawls: Some(crawls.filter()),
            by: groups(&by, &[ReportGroup::City, ReportGroup::Carrier]),
            limit,
        };
        let ask = async |client: &Client| client.answer(client.reports().accuracy(request.clone()).await);
        let text = |report: &AccuracyResponse, view: &View| {
            format.text(&report.rows, "no crawl with a predicted round trip matches\n", report.more, view)
        };
        watch.print(connection, &format, ask, text).await
    }
}

fn error_cell(error: Option<f64>) -> String {
    text_cell(&error.map(share_cell).unwrap_or_default())
}

impl Row for v1::AccuracyRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("?city", |row, _| text_cell(&row.city)),
        ("?carrier", |row, _| text_cell(&row.carrier)),
        ("?agent", |row, _| text_cell(&row.agent)),
        ("?day", |row, _| text_cell(&row.day)),
        (">crawls", |row, _| count_cell(row.crawls)),
        (">median error", |row, _| error_cell(row.median_error)),
        (">90 %", |row, _| error_cell(row.p90_error)),
        (">ratio", |row, _| float_cell(row.median_ratio, 2)),
        (">probed", |row, _| count_cell(row.probed)),
        (">median error", |row, _| error_cell(row.probed_median_error)),
        (">90 %", |row, _| error_cell(row.probed_p90_error)),
        ("+>ratio", |row, _| float_cell(row.probed_median_ratio, 2)),
    ];
    const NAMES: &'static str = "the groups";

    fn name(&self, _: &View) -> String {
        let groups: [&str; 4] = [&self.city, &self.carrier, &self.agent, &self.day];
        groups.into_iter().filter(|group| !group.is_empty()).collect::<Vec<_>>().join(" ")
    }
}
