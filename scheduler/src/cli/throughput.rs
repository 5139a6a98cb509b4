//! `landfall report throughput`: how a batch grew, who did it, and how long it will still take.

use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use landfall_proto::v1::{self, ThroughputRequest, ThroughputResponse};
use serde::Serialize;

use super::ConnectionArgs;
use super::client::Client;
use super::output::{
    self, Format, FormatArgs, Row, Time, View, bytes_cell, count_cell, counted, number, size_cell, text_cell,
};
use super::watch::left;
use crate::exit::{print, usage};

/// From the least to the most that a slice holds.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall report throughput --batch autumn --format csv --by agent > agents.csv")]
pub(super) struct ThroughputArgs {
    /// The batch
    #[arg(long, value_name = "NAME")]
    batch: String,
    /// Only this round of it, from 1 [default: each site's newest]
    #[arg(long, value_name = "N")]
    round: Option<u32>,
    /// Into how many slices of equal length the time is cut, 1 to 500 [default: 20]
    #[arg(long, value_name = "N")]
    slices: Option<u32>,
    /// Of the agents only this one; the batch's growth and its strategies stay whole
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Agents at most; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: usize,
    #[command(flatten)]
    format: FormatArgs<AgentRow>,
    /// Which of the tables CSV has [default: growth]
    #[arg(long, value_enum)]
    by: Option<By>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Growth,
    Agent,
    Strategy,
}

impl ThroughputArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        if self.by.is_some() && self.format.format != Format::Csv {
            return Err(usage("--by: only --format csv has one table, the others have all".to_owned()));
        }
        let client = Client::connect(connection).await?;
        let request = ThroughputRequest { batch: self.batch.clone(), round: self.round, slices: self.slices };
        let asked = client.reports().throughput(request).await;
        let mut answer = asked.map_err(|status| client.refusal(&status))?.into_inner();
        let view = self.format.wide.view();
        let left = answer.estimate.as_ref().map(left);
        let more_agents = cut(&mut answer.agents, self.agent.as_deref(), self.limit).with_context(|| {
            format!("no agent called {} has ended a crawl of batch {}", self.agent.unwrap_or_default(), self.batch)
        })?;
        let shown = Shown { more_agents, ..Shown::of(self.batch, self.round, answer) };
        match (self.format.format, self.by) {
            (Format::Table, _) => print(&text(&shown, left.as_deref(), &view)),
            (Format::Json, _) => output::print_json(&shown),
            (Format::Csv, None | Some(By::Growth)) => output::print_rows(&shown.growth, Format::Csv, &view),
            (Format::Csv, Some(By::Agent)) => output::print_rows(&shown.agents, Format::Csv, &view),
            (Format::Csv, Some(By::Strategy)) => output::print_rows(&shown.strategies, Format::Csv, &view),
        }
    }
}

/// Leaves the agents that are asked for; returns how many more the limit has cut, and `None` where the one asked for is not among them.
fn cut(agents: &mut Vec<v1::AgentThroughput>, only: Option<&str>, limit: usize) -> Option<u64> {
    if let Some(name) = only {
        agents.retain(|row| row.agent == name);
        agents.first()?;
    }
    let most = if limit == 0 { usize::MAX } else { limit };
    let more = agents.len().saturating_sub(most);
    agents.truncate(most);
    Some(more as u64)
}

/// The report, as programs get it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Shown {
    batch: String,
    /// None: each site's newest.
    round: Option<u32>,
    begun_at: Option<Time>,
    until_at: Option<Time>,
    /// From the one to the other.
    span_ms: Option<f64>,
    sites: u64,
    crawled: u64,
    uncrawled: u64,
    crawling: u64,
    crawling_pages: u64,
    pages: u64,
    bytes: u64,
    mb_per_min: Option<f64>,
    sites_per_min: Option<f64>,
    /// None when every site has ended.
    estimate: Option<EstimateShown>,
    growth: Vec<GrowthRow>,
    agents: Vec<AgentRow>,
    /// Agents that a limit has cut.
    #[serde(skip)]
    more_agents: u64,
    strategies: Vec<StrategyRow>,
}

/// An estimate, as programs get it.
#[derive(Debug, Default, Serialize)]
pub(super) struct EstimateShown {
    left_ms: Option<f64>,
    sites: u64,
    held: u64,
    stalled: u64,
    note: String,
}

impl From<&v1::Estimate> for EstimateShown {
    fn from(estimate: &v1::Estimate) -> Self {
        let &v1::Estimate { ref left, sites, held, stalled, ref note } = estimate;
        Self { left_ms: output::millis(left.as_ref()), sites, held, stalled, note: note.clone() }
    }
}

impl Shown {
    pub(super) fn of(batch: String, round: Option<u32>, answer: ThroughputResponse) -> Self {
        let last = answer.growth.last().and_then(|slice| slice.until.as_ref());
        Self {
            batch,
            round,
            begun_at: output::time(answer.begun_at.as_ref()),
            until_at: output::time(answer.until.as_ref()),
            span_ms: output::millis(last),
            sites: answer.sites,
            crawled: answer.crawled,
            uncrawled: answer.uncrawled,
            crawling: answer.crawling,
            crawling_pages: answer.crawling_pages,
            pages: answer.pages,
            bytes: answer.bytes,
            mb_per_min: answer.megabytes_per_minute,
            sites_per_min: answer.sites_per_minute,
            estimate: answer.estimate.as_ref().map(Into::into),
            growth: answer.growth.into_iter().map(Into::into).collect(),
            agents: answer.agents.into_iter().map(Into::into).collect(),
            more_agents: 0,
            strategies: answer.strategies.into_iter().map(Into::into).collect(),
        }
    }

    /// The report's first lines: what was done, and what is to come.
    fn head(&self, view: &View) -> String {
        let which = self.round.map_or(String::new(), |round| format!(", round {round}"));
        let mut head = format!("batch {}{which}: ", self.batch);
        if self.sites == 0 {
            return head + "it has no site\n";
        }
        head += &format!("{} of {} crawled", number(self.crawled), counted(self.sites, "site"));
        if self.uncrawled > 0 {
            head += &format!(", {} ended without a crawl", number(self.uncrawled));
        }
        match (self.begun_at, self.span_ms) {
            (Some(begun), Some(span)) => {
                head += &format!(", in {}; it began {}\n", span_cell(span), view.when(Some(begun)));
            }
            (Some(begun), None) => head += &format!("; the first crawl began {}\n", view.when(Some(begun))),
            (None, _) => head += "; no crawl has begun\n",
        }
        if self.crawled > 0 {
            head += &format!(
                "  {}, {}: {} MB/min, {} sites/min\n",
                counted(self.pages, "page"),
                bytes_cell(self.bytes),
                rate_cell(self.mb_per_min),
                rate_cell(self.sites_per_min)
            );
        }
        if self.crawling > 0 {
            let pages = match self.crawling_pages {
                0 => String::new(),
                pages => format!(", {} so far", counted(pages, "page")),
            };
            head += &format!("  {} being crawled{pages}, not counted below\n", counted(self.crawling, "site"));
        }
        head
    }
}

/// The report for people.
pub(super) fn text(shown: &Shown, left: Option<&str>, view: &View) -> String {
    let mut text = shown.head(view);
    if let Some(left) = left {
        text += &format!("  {left}\n");
    }
    if !shown.growth.is_empty() {
        let rates: Vec<f64> = shown.growth.iter().map(|slice| slice.mb_per_min).collect();
        let width = shown.growth.first().map_or(0.0, |slice| slice.until_ms);
        text += &format!("\nMB/min in each {}  {}\n", span_cell(width), bars(&rates));
        text += &output::table(&shown.growth, view);
    }
    if !shown.agents.is_empty() {
        text += &format!("\n{}{}", output::table(&shown.agents, view), output::more(shown.more_agents));
    }
    if !shown.strategies.is_empty() {
        text += &format!("\n{}", output::table(&shown.strategies, view));
    }
    view.fold(&text)
}

/// One bar a figure; nothing is a blank.
fn bars(figures: &[f64]) -> String {
    let most = figures.iter().copied().fold(0.0, f64::max);
    let bar = |figure: &f64| {
        let share = figure / most;
        // The least step that is not below it.
        let steps = (1u8..=8).find(|step| f64::from(*step) / 8.0 >= share).unwrap_or(8);
        if share > 0.0 { BARS.get(usize::from(steps - 1)).copied().unwrap_or(' ') } else { ' ' }
    };
    figures.iter().map(bar).collect::<String>().trim_end().to_owned()
}

/// A length of time for people: to a tenth of a second below a minute, to the second above.
fn span_cell(millis: f64) -> String {
    if millis < 60_000.0 {
        return format!("{:.1} s", millis / 1e3);
    }
    let seconds = Duration::try_from_secs_f64((millis / 1e3).round()).unwrap_or(Duration::MAX);
    humantime_serde::re::humantime::format_duration(seconds).to_string()
}

fn rate_cell(rate: Option<f64>) -> String {
    text_cell(&rate.map(|rate| format!("{rate:.1}")).unwrap_or_default())
}

/// A slice of time, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct GrowthRow {
    until_ms: f64,
    sites: u64,
    pages: u64,
    bytes: u64,
    mb_per_min: f64,
    sites_per_min: f64,
}

impl From<v1::GrowthSlice> for GrowthRow {
    fn from(slice: v1::GrowthSlice) -> Self {
        Self {
            until_ms: output::millis(slice.until.as_ref()).unwrap_or_default(),
            sites: slice.sites,
            pages: slice.pages,
            bytes: slice.bytes,
            mb_per_min: slice.megabytes_per_minute,
            sites_per_min: slice.sites_per_minute,
        }
    }
}

impl Row for GrowthRow {
    const COLUMNS: &'static [&'static str] = &[">after", ">sites", ">pages", ">size", ">MB/min", ">sites/min"];

    fn cells(&self, _: &View) -> Vec<String> {
        vec![
            span_cell(self.until_ms),
            count_cell(self.sites),
            count_cell(self.pages),
            size_cell(self.bytes),
            rate_cell(Some(self.mb_per_min)),
            rate_cell(Some(self.sites_per_min)),
        ]
    }
}

/// What one agent did of it, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct AgentRow {
    agent: String,
    city: String,
    carrier: String,
    sites: u64,
    pages: u64,
    bytes: u64,
    mb_per_min: Option<f64>,
    /// At least one crawl under way.
    busy_ms: f64,
    /// The crawls' lengths, added up.
    crawling_ms: f64,
    /// Of all bytes, 0 to 1.
    share: Option<f64>,
}

impl From<v1::AgentThroughput> for AgentRow {
    fn from(row: v1::AgentThroughput) -> Self {
        Self {
            agent: row.agent,
            city: row.city,
            carrier: row.carrier,
            sites: row.sites,
            pages: row.pages,
            bytes: row.bytes,
            mb_per_min: row.megabytes_per_minute,
            busy_ms: output::millis(row.busy.as_ref()).unwrap_or_default(),
            crawling_ms: output::millis(row.crawling.as_ref()).unwrap_or_default(),
            share: row.share,
        }
    }
}

impl Row for AgentRow {
    const COLUMNS: &'static [&'static str] =
        &["agent", "city", ">sites", ">pages", ">size", ">MB/min", ">busy", ">at once", ">share", "+carrier"];

    fn cells(&self, _: &View) -> Vec<String> {
        let at_once = (self.busy_ms > 0.0).then(|| self.crawling_ms / self.busy_ms);
        vec![
            self.agent.clone(),
            self.city.clone(),
            count_cell(self.sites),
            count_cell(self.pages),
            size_cell(self.bytes),
            rate_cell(self.mb_per_min),
            span_cell(self.busy_ms),
            rate_cell(at_once),
            text_cell(&self.share.map(|share| format!("{:.1} %", 100.0 * share)).unwrap_or_default()),
            self.carrier.clone(),
        ]
    }
}

/// What came of one strategy's choices, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct StrategyRow {
    strategy: String,
    sites: u64,
    pages: u64,
    bytes: u64,
    mb_per_min: Option<f64>,
    mean_rtt_ms: Option<f64>,
    crawling_ms: f64,
}

impl From<v1::StrategyThroughput> for StrategyRow {
    fn from(row: v1::StrategyThroughput) -> Self {
        Self {
            strategy: row.strategy,
            sites: row.sites,
            pages: row.pages,
            bytes: row.bytes,
            mb_per_min: row.megabytes_per_minute,
            mean_rtt_ms: output::millis(row.mean_rtt.as_ref()),
            crawling_ms: output::millis(row.crawling.as_ref()).unwrap_or_default(),
        }
    }
}

impl Row for StrategyRow {
    const COLUMNS: &'static [&'static str] =
        &["strategy", ">sites", ">pages", ">size", ">MB/min", ">mean rtt ms", ">mean crawl"];

    fn cells(&self, _: &View) -> Vec<String> {
        // Exact to 2^53.
        let mean = (self.sites > 0).then(|| self.crawling_ms / self.sites as f64);
        vec![
            text_cell(&self.strategy),
            count_cell(self.sites),
            count_cell(self.pages),
            size_cell(self.bytes),
            rate_cell(self.mb_per_min),
            output::millis_cell(self.mean_rtt_ms),
            text_cell(&mean.map(span_cell).unwrap_or_default()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn duration(seconds: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos: 0 })
    }

    fn answer() -> ThroughputResponse {
        let slice = |seconds, sites, bytes, megabytes_per_minute| v1::GrowthSlice {
            until: duration(seconds),
            sites,
            pages: 10 * sites,
            bytes,
            megabytes_per_minute,
            sites_per_minute: 1.0,
        };
        ThroughputResponse {
            begun_at: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }),
            until: Some(prost_types::Timestamp { seconds: 1_700_000_120, nanos: 0 }),
            sites: 5,
            crawled: 2,
            uncrawled: 1,
            crawling: 1,
            crawling_pages: 7,
            pages: 20,
            bytes: 3_000_000,
            megabytes_per_minute: Some(1.5),
            sites_per_minute: Some(1.0),
            growth: vec![slice(60, 1, 1_000_000, 1.0), slice(120, 2, 3_000_000, 2.0)],
            agents: vec![v1::AgentThroughput {
                agent: "harbin".into(),
                sites: 2,
                bytes: 3_000_000,
                busy: duration(60),
                crawling: duration(90),
                share: Some(1.0),
                ..v1::AgentThroughput::default()
            }],
            strategies: vec![v1::StrategyThroughput {
                strategy: "gnp-top3".into(),
                sites: 2,
                mean_rtt: Some(prost_types::Duration { seconds: 0, nanos: 12_500_000 }),
                crawling: duration(90),
                ..v1::StrategyThroughput::default()
            }],
            estimate: Some(v1::Estimate { left: duration(70), sites: 2, ..v1::Estimate::default() }),
        }
    }

    #[test]
    fn a_limit_cuts_agents_and_says_how_many_and_one_that_is_not_there_is_no_answer() {
        let agents = || ["a", "b", "c"].map(|agent| v1::AgentThroughput { agent: agent.into(), ..Default::default() });
        let left = |only: Option<&str>, limit| {
            let mut agents = agents().to_vec();
            let more = cut(&mut agents, only, limit);
            (agents.into_iter().map(|row| row.agent).collect::<String>(), more)
        };
        assert_eq!(left(None, 0), ("abc".to_owned(), Some(0)));
        assert_eq!(left(None, 2), ("ab".to_owned(), Some(1)));
        assert_eq!(left(Some("b"), 2), ("b".to_owned(), Some(0)));
        assert_eq!(left(Some("d"), 2).1, None);
        let cut = Shown { more_agents: 2, ..Shown::of("autumn".into(), None, answer()) };
        assert!(text(&cut, None, &View::plain()).contains("\nand 2 more: --limit 0 lists all\n"));
    }

    #[test]
    fn a_batch_under_way_says_what_was_done_and_what_is_left() {
        let answer = answer();
        let now = chrono::DateTime::from_timestamp(1_700_000_300, 0).unwrap();
        let view = View { now, ..View::plain() };
        let about = answer.estimate.as_ref().map(left);
        let text = text(&Shown::of("autumn".into(), Some(2), answer), about.as_deref(), &view);
        let head = "batch autumn, round 2: 2 of 5 sites crawled, 1 ended without a crawl, in 2m; it began 5 min ago\n  \
                    20 pages, 3.0 MB: 1.5 MB/min, 1.0 sites/min\n  1 site being crawled, 7 pages so far, not counted below\n  \
                    about 1m 10s left for 2 sites\n\nMB/min in each 1m  ▄█\n";
        assert!(text.starts_with(head), "{text}");
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines.contains(&vec!["1m", "1", "10", "1.0", "MB", "1.0", "1.0"]), "{text}");
        assert!(
            lines.iter().any(|line| line.starts_with(&["harbin"]) && line.ends_with(&["1m", "1.5", "100.0", "%"])),
            "{text}"
        );
        assert!(
            lines.iter().any(|line| line.starts_with(&["gnp-top3"]) && line.ends_with(&["12.5", "45.0", "s"])),
            "{text}"
        );
    }

    #[test]
    fn a_batch_without_sites_or_crawls_says_so() {
        let of = |answer| text(&Shown::of("b".into(), None, answer), None, &View::plain());
        assert_eq!(of(ThroughputResponse::default()), "batch b: it has no site\n");
        let waiting = ThroughputResponse { sites: 1, ..ThroughputResponse::default() };
        assert_eq!(of(waiting), "batch b: 0 of 1 site crawled; no crawl has begun\n");
    }

    #[test]
    fn bars_show_that_something_is_there() {
        assert_eq!(bars(&[0.0, 0.01, 0.5, 1.0, 0.0]), " ▁▄█");
        assert_eq!(bars(&[0.0]), "");
    }

    #[test]
    fn programs_get_stable_names() {
        let json = serde_json::to_value(Shown::of("b".into(), None, answer())).unwrap();
        assert_eq!(
            (json["growth"][1]["bytes"].as_u64(), json["estimate"]["left_ms"].as_f64()),
            (Some(3_000_000), Some(70_000.0))
        );
        assert_eq!(
            (json["span_ms"].as_f64(), json["agents"][0]["busy_ms"].as_f64()),
            (Some(120_000.0), Some(60_000.0))
        );
    }
}
