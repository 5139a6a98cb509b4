//! `landfall report throughput|agents`: shows a batch's progress over time and by agent, its
//! estimated remaining time, and what each agent did.

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use landfall_proto::json;
use landfall_proto::v1::{
    self, AgentThroughput, AgentsReportRequest, AgentsReportResponse, GrowthSlice, StrategyThroughput,
    ThroughputRequest, ThroughputResponse,
};
use prost_types::Timestamp;
use serde::Serialize;

use crate::app::exit::usage;
use crate::cli::ConnectionArgs;
use crate::cli::agents::list_and_show::{service_tone, service_words};
use crate::cli::batches::wait_and_progress::left;
use crate::cli::connection::Client;
use crate::cli::filters::PlaceArgs;
use crate::cli::output::{
    self, Column, Format, FormatArgs, Row, Tone, View, bytes_cell, count_cell, counted, float_cell, level_cell,
    millis_cell, number, share_cell, size_cell, span, span_cell, text_cell,
};
use crate::cli::pages::pages;
use crate::cli::watch_flag::WatchFlag;

/// The characters that draw bars, from the shortest bar to the longest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall report throughput --batch autumn --format csv --by agent > agents.csv")]
pub(in crate::cli) struct ThroughputArgs {
    /// The batch
    #[arg(long, value_name = "NAME")]
    batch: String,
    /// Only this round of the batch, counted from 1 [default: each site's newest]
    #[arg(long, value_name = "N")]
    round: Option<u32>,
    /// Number of equal slices into which the time is divided, 1 to 500 [default: 20]
    #[arg(long, value_name = "N")]
    slices: Option<u32>,
    /// Only this agent; the batch's growth and its strategies still include all agents
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Maximum number of agents; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: usize,
    #[command(flatten)]
    format: FormatArgs<AgentThroughput>,
    /// The table that CSV and JSON lines contain [default: growth]
    #[arg(long, value_enum)]
    by: Option<By>,
    #[command(flatten)]
    watch: WatchFlag,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Growth,
    Agent,
    Strategy,
}

impl ThroughputArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        if self.by.is_some() && !matches!(self.format.format(), Format::Csv | Format::Jsonl) {
            return Err(usage("--by needs --format csv or jsonl: the other formats print every table".to_owned()));
        }
        let Self { batch, round, slices, agent, limit, format, by, watch } = self;
        let request = ThroughputRequest { batch: batch.clone(), round, slices };
        let ask = async |client: &Client| {
            let mut answer = client.answer(client.reports().throughput(request.clone()).await)?;
            let more_agents = cut(&mut answer.agents, agent.as_deref(), limit).with_context(|| {
                format!("no agent called {} has finished a crawl of batch {batch}", agent.clone().unwrap_or_default())
            })?;
            Ok(Shown { more_agents, ..Shown::of(batch.clone(), round, answer) })
        };
        watch.print(connection, &format, ask, |shown, view| printed(shown, &format, by, view)).await
    }
}

/// Formats the report in any format. `by` selects the table that CSV and JSON lines contain.
fn printed(shown: &Shown, format: &FormatArgs<AgentThroughput>, by: Option<By>, view: &View) -> anyhow::Result<String> {
    let ThroughputResponse { growth, agents, strategies, .. } = &shown.answer;
    match (format.format(), by) {
        (Format::Table, _) => Ok(text(shown, view)),
        (Format::Json, _) => output::formats::json_text(shown),
        (rows @ (Format::Csv | Format::Jsonl), None | Some(By::Growth)) => output::rows_text(growth, rows, view),
        (rows @ (Format::Csv | Format::Jsonl), Some(By::Strategy)) => output::rows_text(strategies, rows, view),
        (Format::Names, _) | (Format::Csv | Format::Jsonl, Some(By::Agent)) => format.text(agents, "", 0, view),
    }
}

/// Keeps only the requested agents. Returns the number of agents that the limit omitted, or `None`
/// if the requested agent is not in the report.
fn cut(agents: &mut Vec<AgentThroughput>, only: Option<&str>, limit: usize) -> Option<u64> {
    if let Some(name) = only {
        agents.retain(|row| row.agent == name);
        agents.first()?;
    }
    let most = if limit == 0 { usize::MAX } else { limit };
    let more = agents.len().saturating_sub(most);
    agents.truncate(most);
    Some(more as u64)
}

/// The report, as printed in JSON.
#[derive(Debug, Default, Serialize)]
pub(in crate::cli) struct Shown {
    batch: String,
    /// The round; `None` for the newest round of each site.
    round: Option<u32>,
    #[serde(serialize_with = "json::time")]
    begun_at: Option<Timestamp>,
    #[serde(serialize_with = "json::time")]
    until_at: Option<Timestamp>,
    /// The time from `begun_at` to `until_at`.
    #[serde(rename = "span_ms", serialize_with = "json::millis")]
    span: Option<prost_types::Duration>,
    #[serde(flatten)]
    answer: ThroughputResponse,
    /// Number of agents that the limit omitted.
    #[serde(skip)]
    more_agents: u64,
}

impl Shown {
    pub(in crate::cli) fn of(batch: String, round: Option<u32>, answer: ThroughputResponse) -> Self {
        let span = answer.growth.last().and_then(|slice| slice.until);
        Self { batch, round, begun_at: answer.begun_at, until_at: answer.until, span, answer, more_agents: 0 }
    }

    /// The first lines of the report: the work that is done, and the work that remains.
    fn head(&self, view: &View) -> String {
        let told = &self.answer;
        let which = self.round.map_or(String::new(), |round| format!(", round {round}"));
        let mut head = format!("batch {}{which}: ", self.batch);
        if told.sites == 0 {
            return head + "it has no site\n";
        }
        head += &format!("{} of {} crawled", number(told.crawled), counted(told.sites, "site"));
        if told.uncrawled > 0 {
            head += &format!(", {} ended without a crawl", number(told.uncrawled));
        }
        match (self.begun_at, self.span) {
            (Some(begun), Some(span)) => {
                head += &format!(", in {}; it began {}\n", span_cell(Some(span)), view.when(Some(begun)));
            }
            (Some(begun), None) => head += &format!("; the first crawl began {}\n", view.when(Some(begun))),
            (None, _) => head += "; no crawl has begun\n",
        }
        if told.crawled > 0 {
            head += &format!(
                "  {}, {}: {} MB/min, {} sites/min\n",
                counted(told.pages, "page"),
                bytes_cell(told.bytes),
                rate_cell(told.megabytes_per_minute),
                rate_cell(told.sites_per_minute)
            );
        }
        if told.crawling > 0 {
            let pages = match told.crawling_pages {
                0 => String::new(),
                pages => format!(", {} so far", counted(pages, "page")),
            };
            head += &format!("  {} being crawled{pages}, not counted below\n", counted(told.crawling, "site"));
        }
        head
    }
}

pub(in crate::cli) fn text(shown: &Shown, view: &View) -> String {
    let mut text = shown.head(view);
    let ThroughputResponse { growth, agents, strategies, estimate, .. } = &shown.answer;
    // The estimate changes with every answer, so it is left out if only changed answers are
    // printed.
    if let Some(estimate) = estimate.as_ref().filter(|_| !view.timeless) {
        text += &format!("  {}\n", left(estimate));
    }
    if !growth.is_empty() {
        let rates: Vec<f64> = growth.iter().map(|slice| slice.megabytes_per_minute).collect();
        let width = growth.first().and_then(|slice| slice.until);
        text += &format!("\nMB/min in each {}  {}\n", span_cell(width), bars(&rates));
        text += &output::table(growth, view);
    }
    if !agents.is_empty() {
        text += &format!("\n{}{}", output::table(agents, view), output::more(shown.more_agents));
    }
    if !strategies.is_empty() {
        text += &format!("\n{}", output::table(strategies, view));
    }
    view.fold(&text)
}

/// Draws one character per value: a bar, or a blank for 0.
fn bars(figures: &[f64]) -> String {
    let most = figures.iter().copied().fold(0.0, f64::max);
    let bar = |figure: &f64| {
        let share = figure / most;
        // The value's share of the largest value, in eighths, rounded up.
        let steps = (1u8..=8).find(|step| f64::from(*step) / 8.0 >= share).unwrap_or(8);
        if share > 0.0 { BARS.get(usize::from(steps - 1)).copied().unwrap_or(' ') } else { ' ' }
    };
    figures.iter().map(bar).collect::<String>().trim_end().to_owned()
}

fn rate_cell(rate: Option<f64>) -> String {
    float_cell(rate, 1)
}

impl Row for GrowthSlice {
    const COLUMNS: &'static [Column<Self>] = &[
        (">after", |row, _| span_cell(row.until)),
        (">sites", |row, _| count_cell(row.sites)),
        (">pages", |row, _| count_cell(row.pages)),
        (">size", |row, _| size_cell(row.bytes)),
        (">MB/min", |row, _| rate_cell(Some(row.megabytes_per_minute))),
        (">sites/min", |row, _| rate_cell(Some(row.sites_per_minute))),
    ];
}

impl Row for AgentThroughput {
    const COLUMNS: &'static [Column<Self>] = &[
        ("agent", |row, _| row.agent.clone()),
        ("city", |row, _| row.city.clone()),
        (">sites", |row, _| count_cell(row.sites)),
        (">pages", |row, _| count_cell(row.pages)),
        (">size", |row, _| size_cell(row.bytes)),
        (">MB/min", |row, _| rate_cell(row.megabytes_per_minute)),
        (">busy", |row, _| span_cell(row.busy)),
        (">at once", |row, _| {
            let busy = json::milliseconds(row.busy).filter(|busy| *busy > 0.0);
            rate_cell(json::milliseconds(row.crawling).zip(busy).map(|(crawling, busy)| crawling / busy))
        }),
        (">share", |row, _| text_cell(&row.share.map(share_cell).unwrap_or_default())),
        ("+carrier", |row, _| row.carrier.clone()),
    ];
}

impl Row for StrategyThroughput {
    const COLUMNS: &'static [Column<Self>] = &[
        ("strategy", |row, _| text_cell(&row.strategy)),
        (">sites", |row, _| count_cell(row.sites)),
        (">pages", |row, _| count_cell(row.pages)),
        (">size", |row, _| size_cell(row.bytes)),
        (">MB/min", |row, _| rate_cell(row.megabytes_per_minute)),
        (">mean rtt ms", |row, _| output::millis_cell(row.mean_rtt)),
        (">mean crawl", |row, _| {
            // The conversion is exact up to 2^53.
            let mean = json::milliseconds(row.crawling).filter(|_| row.sites > 0).map(|all| all / row.sites as f64);
            text_cell(&mean.map(|mean| span(mean / 1e3)).unwrap_or_default())
        }),
    ];
}

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
        let request = AgentsReportRequest { batch, agent, cities, carriers, countries, ..Default::default() };
        let ask = async |client: &Client| agents(client, &request, limit).await;
        let text = |report: &AgentsReportResponse, view: &View| format.text(&report.agents, none, report.more, view);
        watch.print(connection, &format, ask, text).await
    }
}

/// At most `limit` agents; 0 means all.
pub(super) async fn agents(
    client: &Client,
    request: &AgentsReportRequest,
    limit: u64,
) -> anyhow::Result<AgentsReportResponse> {
    pages(limit, async |limit, page_token| {
        let request = AgentsReportRequest { limit, page_token, ..request.clone() };
        client.answer(client.reports().agents(request).await)
    })
    .await
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
        assert!(text(&cut, &View::plain()).contains("\nand 2 more: --limit 0 lists all\n"));
    }

    #[test]
    fn a_batch_under_way_says_what_was_done_and_what_is_left() {
        let answer = answer();
        let now = chrono::DateTime::from_timestamp(1_700_000_300, 0).unwrap();
        let view = View { now, ..View::plain() };
        let text = text(&Shown::of("autumn".into(), Some(2), answer), &view);
        let head = "batch autumn, round 2: 2 of 5 sites crawled, 1 ended without a crawl, in 2.0 min; it began 5 min ago\n  \
                    20 pages, 3.0 MB: 1.5 MB/min, 1.0 sites/min\n  1 site being crawled, 7 pages so far, not counted below\n  \
                    about 1m 10s left for 2 sites\n\nMB/min in each 60.0 s  ▄█\n";
        assert!(text.starts_with(head), "{text}");
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines.contains(&vec!["60.0", "s", "1", "10", "1.0", "MB", "1.0", "1.0"]), "{text}");
        assert!(
            lines
                .iter()
                .any(|line| line.starts_with(&["harbin"]) && line.ends_with(&["60.0", "s", "1.5", "100.0", "%"])),
            "{text}"
        );
        assert!(
            lines.iter().any(|line| line.starts_with(&["gnp-top3"]) && line.ends_with(&["12.5", "45.0", "s"])),
            "{text}"
        );
    }

    #[test]
    fn a_batch_without_sites_or_crawls_says_so() {
        let of = |answer| text(&Shown::of("b".into(), None, answer), &View::plain());
        assert_eq!(of(ThroughputResponse::default()), "batch b: it has no site\n");
        let waiting = ThroughputResponse { sites: 1, ..ThroughputResponse::default() };
        assert_eq!(of(waiting), "batch b: 0 of 1 site crawled; no crawl has begun\n");
    }

    #[test]
    fn bars_show_that_something_is_there() {
        assert_eq!(bars(&[0.0, 0.01, 0.5, 1.0, 0.0]), " ▁▄█");
        assert_eq!(bars(&[0.0]), "");
    }
}
