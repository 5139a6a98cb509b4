//! `landfall report accuracy|failures`: shows how well predicted round trips agreed with measured
//! ones, and counts failed sites by reason and agent, with the flags that select the crawls.

use clap::Args;
use landfall_proto::json::Word as _;
use landfall_proto::v1::{
    self, AccuracyRequest, AccuracyResponse, AccuracyRow, FailureRow, FailuresRequest, FailuresResponse,
};

use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::filters::{PlaceArgs, TimeArgs, one_of, timestamp};
use crate::cli::output::{Column, FormatArgs, Row, View, count_cell, float_cell, share_cell, text_cell};
use crate::cli::pages::pages;
use crate::cli::watch_flag::WatchFlag;
use crate::model::{ReasonKind, ReportGroup};

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
            ..AccuracyRequest::default()
        };
        let ask = async |client: &Client| accuracy(client, &request, limit).await;
        let text = |report: &AccuracyResponse, view: &View| {
            format.text(&report.rows, "no crawl with a predicted round trip matches\n", report.more, view)
        };
        watch.print(connection, &format, ask, text).await
    }
}

/// At most `limit` rows; 0 means all.
pub(super) async fn accuracy(
    client: &Client,
    request: &AccuracyRequest,
    limit: u64,
) -> anyhow::Result<AccuracyResponse> {
    pages(limit, async |limit, page_token| {
        let request = AccuracyRequest { limit, page_token, ..request.clone() };
        client.answer(client.reports().accuracy(request).await)
    })
    .await
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
            ..FailuresRequest::default()
        };
        let ask = async |client: &Client| failures(client, &request, limit).await;
        let text = |report: &FailuresResponse, view: &View| {
            format.text(&report.rows, "no failed site matches\n", report.more, view)
        };
        watch.print(connection, &format, ask, text).await
    }
}

/// At most `limit` rows; 0 means all.
pub(super) async fn failures(
    client: &Client,
    request: &FailuresRequest,
    limit: u64,
) -> anyhow::Result<FailuresResponse> {
    pages(limit, async |limit, page_token| {
        let request = FailuresRequest { limit, page_token, ..request.clone() };
        client.answer(client.reports().failures(request).await)
    })
    .await
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

/// Selects crawls by their agent, or failed sites by the agent that was chosen last for them.
#[derive(Debug, Args)]
struct CrawlArgs {
    /// Only this batch
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    /// Only this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    #[command(flatten)]
    places: PlaceArgs,
    #[command(flatten)]
    time: TimeArgs,
}

impl CrawlArgs {
    fn filter(self) -> v1::CrawlFilter {
        v1::CrawlFilter {
            batch: self.batch.unwrap_or_default(),
            agent: self.agent.unwrap_or_default(),
            cities: self.places.city,
            carriers: self.places.carrier,
            countries: self.places.country,
            since: self.time.since.map(timestamp),
            until: self.time.until.map(timestamp),
        }
    }
}

/// Converts the properties by which rows are grouped to the protocol's type; `usual` applies if the
/// user gave none.
pub(super) fn groups(asked: &[ReportGroup], usual: &[ReportGroup]) -> Vec<i32> {
    let groups = if asked.is_empty() { usual } else { asked };
    groups.iter().map(|group| v1::ReportGroup::from(*group).into()).collect()
}
