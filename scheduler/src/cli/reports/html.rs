//! `landfall report html`: writes a page with plots and tables of one batch, or of all batches.
//!
//! The page is a single file without scripts or requests, and is readable on light and dark
//! screens. Its content comes from the scheduler's answers, whose texts `maud` escapes.

use std::io::Write as _;
use std::path::PathBuf;

use chrono::{DateTime, Utc};
use clap::Args;
use landfall_proto::json::{Word as _, milliseconds, rfc3339};
use landfall_proto::v1;
use landfall_proto::v1::{
    AccuracyRequest, AgentsReportRequest, CrawlFilter, FailuresRequest, ListBatchesRequest, ReportGroup,
    ThroughputRequest,
};
use maud::{Markup, html};

use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::batches::list_cancel_and_remove;
use crate::cli::connection::Client;
use crate::cli::files;
use crate::cli::filters::{TimeArgs, timestamp};
use crate::cli::output::{bytes_cell, count_cell, float_cell, millis_cell, number, share_cell, size_cell, text_cell};
use crate::cli::reports::{accuracy_and_failures, throughput_and_agents};
use crate::machine::clock::now;
use crate::plot::{Axis, Bar, Curve, STYLE, bars, document, lines};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall report html --batch autumn --output autumn.html
  landfall report html --since 7d --output week.html

The page is one file without scripts, which any browser can show offline. --since and --until select the failures
and the crawls whose accuracy is shown.")]
pub(in crate::cli) struct HtmlArgs {
    /// Only this batch, with its progress and throughput
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    #[command(flatten)]
    time: TimeArgs,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
}

impl HtmlArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        // The file is checked first, so that an error is reported before the scheduler
        // computes answers.
        files::beside("--output", &self.output)?;
        let client = Client::connect(connection).await?;
        let text = page(&self.ask(&client).await?, now());
        files::write("--output", &self.output, |mut file| Ok(file.write_all(text.as_bytes())?))?;
        print(&format!("wrote {}\n", self.output.display()))
    }

    async fn ask(&self, client: &Client) -> anyhow::Result<Answers> {
        let batch = self.batch.clone().unwrap_or_default();
        let (since, until) = (self.time.since.map(timestamp), self.time.until.map(timestamp));
        let wanted = CrawlFilter { batch: batch.clone(), since, until, ..CrawlFilter::default() };
        let accuracy = async |by: &[ReportGroup]| {
            let by = by.iter().map(|group| (*group).into()).collect();
            let request = AccuracyRequest { crawls: Some(wanted.clone()), by, ..AccuracyRequest::default() };
            anyhow::Ok(accuracy_and_failures::accuracy(client, &request, 0).await?.rows)
        };
        let failures = async |by: ReportGroup| {
            let by = vec![by.into()];
            let request = FailuresRequest { sites: Some(wanted.clone()), by, ..FailuresRequest::default() };
            anyhow::Ok(accuracy_and_failures::failures(client, &request, 0).await?.rows)
        };
        let asked = AgentsReportRequest { batch: batch.clone(), ..AgentsReportRequest::default() };
        let mut answers = Answers {
            agents: throughput_and_agents::agents(client, &asked, 0).await?.agents,
            places: accuracy(&[ReportGroup::City, ReportGroup::Carrier]).await?,
            days: accuracy(&[ReportGroup::Day]).await?,
            reasons: failures(ReportGroup::Reason).await?,
            sources: failures(ReportGroup::Agent).await?,
            ..Answers::default()
        };
        if batch.is_empty() {
            let asked = ListBatchesRequest { since, until, ..ListBatchesRequest::default() };
            answers.batches = list_cancel_and_remove::batches(client, &asked, 0).await?.batches;
        } else {
            let asked = ThroughputRequest { batch: batch.clone(), round: None, slices: Some(SLICES) };
            answers.batch = Some((batch.clone(), client.answer(client.reports().throughput(asked).await)?));
        }
        Ok(answers)
    }
}

/// Maximum number of bars of a plot, and of rows of a table. A line below the plot or table states
/// how many were left out.
const MOST_BARS: usize = 20;
const MOST_ROWS: usize = 200;
/// Number of slices into which the time of a batch is divided.
const SLICES: u32 = 120;

/// The scheduler's answers, from which the page is made.
#[derive(Debug, Default)]
struct Answers {
    /// The batch's name, and its throughput; `None` for a page about all batches.
    pub(super) batch: Option<(String, v1::ThroughputResponse)>,
    /// All batches; empty if the page is about one batch.
    pub(super) batches: Vec<v1::Batch>,
    pub(super) agents: Vec<v1::AgentRow>,
    pub(super) places: Vec<v1::AccuracyRow>,
    pub(super) days: Vec<v1::AccuracyRow>,
    pub(super) reasons: Vec<v1::FailureRow>,
    pub(super) sources: Vec<v1::FailureRow>,
}

fn page(answers: &Answers, now: DateTime<Utc>) -> String {
    let title = answers.batch.as_ref().map_or("All batches".to_owned(), |(name, _)| format!("Batch {name}"));
    let body = html! {
        h1 { (title) }
        p.soft { "Landfall, at " (rfc3339(now)) ". Sites count in their newest rounds; an agent's sites are those it crawled." }
        (tiles(answers))
        @if let Some((_, told)) = &answers.batch { (growth(told)) }
        (batches(&answers.batches))
        (shares(&answers.agents))
        (failures(answers))
        (accuracy(answers))
        (agents(&answers.agents))
    };
    document(&format!("Landfall: {title}"), STYLE, &body)
}

fn tiles(answers: &Answers) -> Markup {
    let sum = |figure: fn(&v1::AgentRow) -> u64| answers.agents.iter().map(figure).fold(0, u64::saturating_add);
    let failed = answers.reasons.iter().map(|row| row.sites).fold(0, u64::saturating_add);
    let mut tiles = vec![
        (number(sum(crawls)), "crawls ended"),
        (number(sum(|row| row.pages)), "pages"),
        (bytes_cell(sum(|row| row.bytes)), "fetched"),
        (number(failed), "sites failed"),
    ];
    if let Some((_, told)) = &answers.batch {
        tiles.insert(0, (number(told.sites), "sites"));
        tiles.push((float_cell(told.megabytes_per_minute, 1), "MB a minute over the whole time"));
    }
    html! { div.tiles { @for (figure, what) in tiles { div.tile { b { (figure) } span { (what) } } } } }
}

const fn crawls(row: &v1::AgentRow) -> u64 {
    row.complete.saturating_add(row.truncated).saturating_add(row.failed)
}

/// Plots progress and throughput over time.
fn growth(told: &v1::ThroughputResponse) -> Markup {
    let hours = |slice: &v1::GrowthSlice| milliseconds(slice.until).unwrap_or_default() / 1e3;
    let Some(end) = told.growth.last().map(hours).filter(|end| *end > 0.0) else {
        return html! { figure { h2 { "Progress" } figcaption { "No crawl has ended." } } };
    };
    let (unit, seconds) = match end {
        ..180.0 => ("seconds", 1.0),
        ..10_800.0 => ("minutes", 60.0),
        ..259_200.0 => ("hours", 3_600.0),
        _ => ("days", 86_400.0),
    };
    let across = Axis::linear(format!("{unit} since the first crawl began"), end / seconds);
    let curve = |name: &str, class: &str, first: f64, figure: &dyn Fn(&v1::GrowthSlice) -> f64| {
        let points = told.growth.iter().map(|slice| (hours(slice) / seconds, figure(slice)));
        Curve {
            name: name.to_owned(),
            class: class.to_owned(),
            points: [(0.0, first)].into_iter().chain(points).collect(),
            marked: false,
        }
    };
    // Numbers of sites are exact in an f64 up to 2^53.
    let progress = curve("sites crawled", "c0", 0.0, &|slice| slice.sites as f64);
    let rate = curve("MB a minute", "c1", 0.0, &|slice| slice.megabytes_per_minute);
    let most = told.growth.iter().map(|slice| slice.megabytes_per_minute).fold(0.0, f64::max);
    html! {
        figure {
            h2 { "Progress" }
            figcaption { "Sites whose crawl had ended, of " (number(told.sites)) "." }
            (lines("Sites crawled over time", &across, &Axis::linear("sites", told.sites as f64), &[progress]))
        }
        figure {
            h2 { "Throughput" }
            figcaption { "A crawl's bytes are spread evenly over its length, and known when it ends: the last figures of a batch under way are too low." }
            (lines("Megabytes a minute over time", &across, &Axis::linear("MB a minute", most), &[rate]))
        }
    }
}

fn batches(batches: &[v1::Batch]) -> Markup {
    if batches.is_empty() {
        return html! {};
    }
    html! { section {
        h2 { "Batches" }
        table {
            tr { th { "batch" } th { "strategy" } th.n { "open" } th.n { "done" } th.n { "failed" } th.n { "cancelled" } }
            @for batch in batches.iter().take(MOST_ROWS) { tr {
                td { (batch.name) } td { (batch.strategy) }
                td.n { (count_cell(batch.open)) } td.n { (count_cell(batch.done)) }
                td.n { (count_cell(batch.failed)) } td.n { (count_cell(batch.cancelled)) }
            } }
        }
        (left_out(batches.len(), MOST_ROWS))
    } }
}

/// States how many rows are not on the page.
fn left_out(rows: usize, shown: usize) -> Markup {
    let more = rows.saturating_sub(shown);
    html! { @if more > 0 { p.soft { "and " (more) " more, which the report's other formats have" } } }
}

/// The bars with the greatest values. Rows without a value come last.
fn greatest(mut rows: Vec<(String, Option<f64>)>, class: &str) -> Vec<Bar> {
    rows.sort_by(|a, b| b.1.unwrap_or(-1.0).total_cmp(&a.1.unwrap_or(-1.0)));
    rows.into_iter().take(MOST_BARS).map(|(name, value)| Bar { name, class: class.to_owned(), value }).collect()
}

fn most(bars: &[Bar]) -> f64 {
    bars.iter().filter_map(|bar| bar.value).fold(0.0, f64::max)
}

fn shares(agents: &[v1::AgentRow]) -> Markup {
    let all = agents.iter().map(crawls).fold(0, u64::saturating_add);
    if all == 0 {
        return html! {};
    }
    let rows: Vec<(String, Option<f64>)> = agents
        .iter()
        .filter(|row| crawls(row) > 0)
        .map(|row| (row.agent.clone(), Some(100.0 * crawls(row) as f64 / all as f64)))
        .collect();
    let count = rows.len();
    let drawn = greatest(rows, "c0");
    html! { figure {
        h2 { "The agents' shares" }
        figcaption { "Share of the ended crawls." }
        (bars("Share of crawls by agent", &Axis::linear("crawls, %", most(&drawn)), &drawn))
        (left_out(count, MOST_BARS))
    } }
}

fn failures(answers: &Answers) -> Markup {
    if answers.reasons.is_empty() {
        return html! { figure { h2 { "Failures" } figcaption { "No site failed." } } };
    }
    let bar = |row: &v1::FailureRow, name: String| (name, Some(row.sites as f64));
    let reasons = greatest(
        answers.reasons.iter().map(|row| bar(row, row.reason_kind().word_or_unknown().to_owned())).collect(),
        "c2",
    );
    let named = |row: &v1::FailureRow| if row.agent.is_empty() { "(no agent)".to_owned() } else { row.agent.clone() };
    let sources = greatest(answers.sources.iter().map(|row| bar(row, named(row))).collect(), "c2");
    html! {
        figure {
            h2 { "Failures by reason" }
            figcaption { "Number of failed sites. `landfall sites list --state failed --reason KIND` lists them." }
            (bars("Failed sites by reason", &Axis::linear("sites", most(&reasons)), &reasons))
        }
        figure {
            h2 { "Failures by agent" }
            figcaption { "Number of failed sites, by the agent that was chosen last." }
            (bars("Failed sites by agent", &Axis::linear("sites", most(&sources)), &sources))
            (left_out(answers.sources.len(), MOST_BARS))
        }
    }
}

fn accuracy(answers: &Answers) -> Markup {
    let percent = |error: Option<f64>| error.map(|error| 100.0 * error);
    let known = || answers.places.iter().filter(|row| row.median_error.is_some());
    if known().next().is_none() {
        return html! { figure {
            h2 { "Accuracy" } figcaption { "No crawl with a predicted round trip has ended." }
        } };
    }
    let name = |row: &v1::AccuracyRow| format!("{} {}", row.city, row.carrier);
    let drawn = greatest(known().map(|row| (name(row), percent(row.median_error))).collect(), "c1");
    let days: Vec<&v1::AccuracyRow> = answers.days.iter().filter(|row| row.median_error.is_some()).collect();
    let shown = |error: Option<f64>| text_cell(&error.map(share_cell).unwrap_or_default());
    html! {
        figure {
            h2 { "Errors of prediction by place" }
            figcaption {
                "The median of |predicted − measured| / measured over crawls, by the agent's city and carrier, the worst first. \
                 Measured is the median round trip of the crawl."
            }
            (bars("Median error by place", &Axis::linear("median error, %", most(&drawn)), &drawn))
            (left_out(known().count(), MOST_BARS))
        }
        section {
            h2 { "Errors of prediction by day" }
            table {
                tr { th { "day (UTC)" } th.n { "crawls" } th.n { "median error" } th.n { "90th percentile" } th.n { "measured / predicted" } }
                @for row in days.iter().rev().take(MOST_ROWS) { tr {
                    td { (row.day) } td.n { (count_cell(row.crawls)) }
                    td.n { (shown(row.median_error)) } td.n { (shown(row.p90_error)) } td.n { (float_cell(row.median_ratio, 2)) }
                } }
            }
            (left_out(days.len(), MOST_ROWS))
        }
    }
}

fn agents(agents: &[v1::AgentRow]) -> Markup {
    html! { section {
        h2 { "Agents" }
        table {
            tr {
                th { "agent" } th { "city" } th { "carrier" } th.n { "assigned" } th.n { "complete" } th.n { "truncated" }
                th.n { "failed" } th.n { "pages" } th.n { "size" } th.n { "rtt, ms" }
            }
            @for row in agents.iter().take(MOST_ROWS) { tr {
                td { (row.agent) } td { (row.city) } td { (row.carrier) }
                td.n { (count_cell(row.assigned)) } td.n { (count_cell(row.complete)) } td.n { (count_cell(row.truncated)) }
                td.n { (count_cell(row.failed)) } td.n { (count_cell(row.pages)) } td.n { (size_cell(row.bytes)) }
                td.n { (millis_cell(row.mean_rtt)) }
            } }
        }
        (left_out(agents.len(), MOST_ROWS))
    } }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "<script>alert(1)</script>\"'&";

    fn answers() -> Answers {
        let text = || HOSTILE.to_owned();
        let slice = |seconds, sites| v1::GrowthSlice {
            until: Some(prost_types::Duration { seconds, nanos: 0 }),
            sites,
            megabytes_per_minute: f64::NAN,
            ..Default::default()
        };
        let growth = vec![slice(60, 1), slice(120, u64::MAX)];
        let told = v1::ThroughputResponse { sites: 3, growth, megabytes_per_minute: Some(1.5), ..Default::default() };
        let agent = |agent: String| v1::AgentRow {
            agent,
            city: text(),
            carrier: text(),
            complete: 2,
            bytes: u64::MAX,
            ..Default::default()
        };
        let accuracy = |day: &str| v1::AccuracyRow {
            city: text(),
            carrier: text(),
            day: day.to_owned(),
            crawls: 7,
            median_error: Some(0.5),
            p90_error: Some(0.9),
            ..Default::default()
        };
        let failure = |agent: String| v1::FailureRow { agent, sites: 4, example: text(), ..Default::default() };
        Answers {
            batch: Some((text(), told)),
            batches: vec![v1::Batch { name: text(), strategy: text(), ..Default::default() }],
            agents: (0..MOST_ROWS + 5).map(|n| agent(format!("{HOSTILE}{n}"))).collect(),
            places: vec![accuracy("")],
            days: vec![accuracy("2026-11-24")],
            reasons: vec![failure(String::new())],
            sources: vec![failure(text()), failure(String::new())],
        }
    }

    #[test]
    fn a_page_escapes_every_text_and_asks_nothing_of_other_servers() {
        let page = page(&answers(), DateTime::UNIX_EPOCH);
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot;"), "the names are there");
        assert!(!page.contains("<script") && !page.contains("NaN") && !page.contains("inf "), "{page}");
        for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("and 5 more, which") && page.contains("(no agent)"), "{page}");
    }

    #[test]
    fn a_page_without_crawls_says_so() {
        let empty = page(&Answers::default(), DateTime::UNIX_EPOCH);
        for said in ["All batches", "No site failed.", "No crawl with a predicted round trip has ended."] {
            assert!(empty.contains(said), "{said}");
        }
        let begun = Answers { batch: Some(("b".into(), v1::ThroughputResponse::default())), ..Answers::default() };
        assert!(page(&begun, DateTime::UNIX_EPOCH).contains("No crawl has ended."));
    }
}
