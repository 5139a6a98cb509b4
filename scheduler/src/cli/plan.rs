//! `landfall plan`: what another fleet would come to, from the sites already located, and where the next agents would help most.

use std::fmt::Write;

use clap::Args;
use landfall_proto::v1::{
    LeftOutAgent, PlanRequest, PlanResponse, PlannedAddition, PlannedAgent, PlannedLoad, PlannedOutlook,
    PlannedSuggestion,
};
use serde::Serialize;

use super::ConnectionArgs;
use super::addition::Addition;
use super::client::Client;
use super::output::{self, Row, ShowFormat, ShowFormatArgs, View, counted};
use super::sites::{Globe, globe_cell};
use crate::exit::print;
use crate::model::Strategy;

/// Agents that take no part and are named to people.
const NAMED_AT_MOST: usize = 10;

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// An agent that would be there too: city=CITY,isp=CARRIER,near=HOST and, if you like, slots=N,name=NAME. HOST is a located site or
    /// an agent: where on the network the new one would be. May be said again, 100 at most
    #[arg(long, value_name = "city=CITY,isp=CARRIER,near=HOST")]
    add: Vec<Addition>,
    /// An agent that would be gone; may be said again
    #[arg(long, value_name = "NAME")]
    remove: Vec<String>,
    /// Say so many places, 1 to 20, where further agents would help most, after those changes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20))]
    suggest: Option<u32>,
    /// How sites are given to agents: random, gnp-top1 or gnp-top3 [default: gnp-top3]
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<Strategy>,
    #[command(flatten)]
    format: ShowFormatArgs<AgentRow>,
}

impl PlanArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { add, remove, suggest, strategy, format: ShowFormatArgs { format, wide } } = self;
        let client = Client::connect(connection).await?;
        let request = PlanRequest {
            add: add.into_iter().map(PlannedAddition::from).collect(),
            remove,
            strategy: strategy.map(|strategy| strategy.name().to_owned()).unwrap_or_default(),
            suggest: suggest.unwrap_or_default(),
        };
        let asked = client.reports().plan(request).await;
        let plan = Plan::from(asked.map_err(|status| client.refusal(&status))?.into_inner());
        match format {
            ShowFormat::Table => print(&plan.text(suggest.is_some(), &wide.view())?),
            ShowFormat::Json => output::print_json(&plan),
        }
    }
}

/// A plan, as printed.
#[derive(Debug, Serialize)]
pub(super) struct Plan {
    epoch: i64,
    strategy: String,
    sites: u64,
    sites_elsewhere: u64,
    sites_in_several_places: u64,
    sites_of_known_size: u64,
    usual_pages: u32,
    usual_bytes: u64,
    before: Outlook,
    after: Outlook,
    agents: Vec<AgentRow>,
    left_out: Vec<LeftOut>,
    suggestions: Vec<SuggestionRow>,
    sampled_sites: u64,
    tried_places: u64,
}

#[derive(Debug, Default, Serialize)]
struct Outlook {
    mean_ms: Option<f64>,
    makespan_ms: Option<f64>,
    longest: String,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct AgentRow {
    agent: String,
    city: String,
    carrier: String,
    slots: u32,
    change: String,
    before: Option<Load>,
    after: Option<Load>,
}

/// The same of a fleet that stays as it is.
#[derive(Debug, Default, Serialize)]
struct SoleRow<'a> {
    agent: &'a str,
    slots: u32,
    load: Option<Load>,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Load {
    sites: f64,
    share: f64,
    work_ms: Option<f64>,
    busy_ms: Option<f64>,
}

#[derive(Debug, Serialize)]
struct LeftOut {
    agent: String,
    why: String,
}

#[derive(Debug, Default, Serialize)]
struct SuggestionRow {
    rank: u32,
    near: String,
    position: Option<Globe>,
    gain_ms: Option<f64>,
    mean_ms: Option<f64>,
    share: f64,
}

impl From<PlanResponse> for Plan {
    fn from(plan: PlanResponse) -> Self {
        let suggestion = |(rank, one): (u32, PlannedSuggestion)| SuggestionRow {
            rank,
            near: one.near,
            position: one.position.map(Globe::from),
            gain_ms: output::millis(one.gain.as_ref()),
            mean_ms: output::millis(one.mean.as_ref()),
            share: one.share,
        };
        let left_out = |LeftOutAgent { name, why }: LeftOutAgent| LeftOut { agent: name, why };
        Self {
            epoch: plan.epoch,
            strategy: plan.strategy,
            sites: plan.sites,
            sites_elsewhere: plan.sites_elsewhere,
            sites_in_several_places: plan.sites_in_several_places,
            sites_of_known_size: plan.sites_of_known_size,
            usual_pages: plan.usual_pages,
            usual_bytes: plan.usual_bytes,
            before: plan.before.map(Outlook::from).unwrap_or_default(),
            after: plan.after.map(Outlook::from).unwrap_or_default(),
            agents: plan.agents.into_iter().map(AgentRow::from).collect(),
            left_out: plan.left_out.into_iter().map(left_out).collect(),
            suggestions: (1..).zip(plan.suggestions).map(suggestion).collect(),
            sampled_sites: plan.sampled_sites,
            tried_places: plan.tried_places,
        }
    }
}

impl From<PlannedOutlook> for Outlook {
    fn from(PlannedOutlook { mean, makespan, longest }: PlannedOutlook) -> Self {
        Self { mean_ms: output::millis(mean.as_ref()), makespan_ms: output::millis(makespan.as_ref()), longest }
    }
}

impl From<PlannedAgent> for AgentRow {
    fn from(agent: PlannedAgent) -> Self {
        let PlannedAgent { name, city, carrier, slots, change, before, after } = agent;
        let (before, after) = (before.map(Load::from), after.map(Load::from));
        Self { agent: name, city, carrier, slots, change, before, after }
    }
}

impl From<PlannedLoad> for Load {
    fn from(PlannedLoad { sites, share, work, busy }: PlannedLoad) -> Self {
        Self { sites, share, work_ms: output::millis(work.as_ref()), busy_ms: output::millis(busy.as_ref()) }
    }
}

impl Row for AgentRow {
    const COLUMNS: &'static [&'static str] = &[
        "agent", "change", ">sites", ">after", ">busy", ">after", "+>slots", "+>share", "+>after", "+>work", "+>after",
    ];

    fn cells(&self, _: &View) -> Vec<String> {
        let of =
            |cell: fn(&Load) -> String| [self.before.as_ref(), self.after.as_ref()].map(|load| load_cell(load, cell));
        let mut cells = vec![self.agent.clone(), self.change.clone()];
        cells.extend([sites_of, busy_of].into_iter().flat_map(of));
        cells.push(self.slots.to_string());
        cells.extend([share_of, work_of].into_iter().flat_map(of));
        cells
    }
}

impl Row for SoleRow<'_> {
    const COLUMNS: &'static [&'static str] = &["agent", ">slots", ">sites", ">share", ">work", ">busy"];

    fn cells(&self, _: &View) -> Vec<String> {
        let of = |cell: fn(&Load) -> String| load_cell(self.load.as_ref(), cell);
        let mut cells = vec![self.agent.to_owned(), self.slots.to_string()];
        cells.extend([sites_of, share_of, work_of, busy_of].map(of));
        cells
    }
}

impl Row for SuggestionRow {
    const COLUMNS: &'static [&'static str] = &[">rank", "near", "position", ">saves ms", ">mean ms then", ">takes"];

    fn cells(&self, _: &View) -> Vec<String> {
        vec![
            self.rank.to_string(),
            self.near.clone(),
            globe_cell(self.position.as_ref()),
            fine_cell(self.gain_ms),
            fine_cell(self.mean_ms),
            share_cell(self.share),
        ]
    }
}

fn load_cell(load: Option<&Load>, cell: fn(&Load) -> String) -> String {
    load.map_or_else(|| "-".to_owned(), cell)
}

fn sites_of(load: &Load) -> String {
    format!("{:.1}", load.sites)
}

fn share_of(load: &Load) -> String {
    share_cell(load.share)
}

fn work_of(load: &Load) -> String {
    span_cell(load.work_ms)
}

fn busy_of(load: &Load) -> String {
    span_cell(load.busy_ms)
}

fn share_cell(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Milliseconds to a hundredth: a suggestion may be worth less than a tenth.
fn fine_cell(millis: Option<f64>) -> String {
    millis.map_or_else(|| "-".to_owned(), |millis| format!("{millis:.2}"))
}

/// A time for people, with the unit in which it has two or three digits before the point.
fn span_cell(millis: Option<f64>) -> String {
    let Some(millis) = millis else { return "-".to_owned() };
    match millis / 1e3 {
        seconds if seconds < 120.0 => format!("{seconds:.1} s"),
        seconds if seconds < 7_200.0 => format!("{:.1} min", seconds / 60.0),
        seconds if seconds < 360_000.0 => format!("{:.1} h", seconds / 3_600.0),
        seconds => format!("{:.1} days", seconds / 86_400.0),
    }
}

/// By how much it changes, in per cent of what it was.
fn change_cell(before: Option<f64>, after: Option<f64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) if before > 0.0 => format!("{:+.1} %", (after / before - 1.0) * 100.0),
        _ => "-".to_owned(),
    }
}

impl Plan {
    pub(super) fn text(&self, suggested: bool, view: &View) -> anyhow::Result<String> {
        let mut text = String::new();
        self.write_ground(&mut text)?;
        let changed = self.agents.iter().any(|agent| agent.change != "stays");
        let (before, after) = (&self.before, &self.after);
        text.push('\n');
        if changed {
            let rows = [
                ("mean round trip", fine_cell(before.mean_ms) + " ms", fine_cell(after.mean_ms) + " ms"),
                ("makespan", span_cell(before.makespan_ms), span_cell(after.makespan_ms)),
            ];
            let changes =
                [change_cell(before.mean_ms, after.mean_ms), change_cell(before.makespan_ms, after.makespan_ms)];
            writeln!(text, "{:<16} {:>12} {:>12} {:>10}", "", "before", "after", "change")?;
            for ((what, before, after), change) in rows.into_iter().zip(changes) {
                writeln!(text, "{what:<16} {before:>12} {after:>12} {change:>10}")?;
            }
            writeln!(text, "busy longest: {} before, {} after\n", before.longest, after.longest)?;
            text.push_str(&output::table(&self.agents, view));
        } else {
            writeln!(text, "mean round trip {} ms", fine_cell(before.mean_ms))?;
            writeln!(text, "makespan        {} ({} is busy longest)\n", span_cell(before.makespan_ms), before.longest)?;
            let sole = self.agents.iter().map(|one| SoleRow { agent: &one.agent, slots: one.slots, load: one.before });
            text.push_str(&output::table(&sole.collect::<Vec<_>>(), view));
        }
        if suggested {
            self.write_suggestions(&mut text, view)?;
        }
        Ok(view.fold(&text))
    }

    /// What the figures rest on, and what they leave out.
    fn write_ground(&self, text: &mut String) -> anyhow::Result<()> {
        let Self { epoch, strategy, sites, .. } = self;
        writeln!(text, "embedding {epoch}, {}, each crawled once by {strategy}", counted(*sites, "site"))?;
        let unknown = sites.saturating_sub(self.sites_of_known_size);
        let usual =
            format!("{} pages, {}", output::number(self.usual_pages.into()), output::bytes_cell(self.usual_bytes));
        match (self.sites_of_known_size, unknown) {
            (0, _) => writeln!(text, "sizes: none was crawled before, each is taken to have {usual}")?,
            (_, 0) => writeln!(text, "sizes: those of the last crawls")?,
            (known, _) => writeln!(
                text,
                "sizes: of {} those of the last crawls, {} are taken to have their mean ({usual})",
                output::number(known),
                output::number(unknown)
            )?,
        }
        if self.sites_in_several_places > 0 {
            writeln!(
                text,
                "not counted: {} suspected to stand in several places",
                counted(self.sites_in_several_places, "site")
            )?;
        }
        if self.sites_elsewhere > 0 {
            writeln!(text, "not counted: {} located in another embedding", counted(self.sites_elsewhere, "site"))?;
        }
        for LeftOut { agent, why } in self.left_out.iter().take(NAMED_AT_MOST) {
            writeln!(text, "not counted: {agent} {why}")?;
        }
        let more = self.left_out.len().saturating_sub(NAMED_AT_MOST);
        if more > 0 {
            writeln!(text, "not counted: {more} more agents")?;
        }
        Ok(())
    }

    fn write_suggestions(&self, text: &mut String, view: &View) -> anyhow::Result<()> {
        let (tried, sampled) = (counted(self.tried_places, "place"), counted(self.sampled_sites, "site"));
        let where_ = if self.sampled_sites < self.sites {
            format!("found by a sample of {sampled}, told of all")
        } else {
            "of all sites".to_owned()
        };
        if self.suggestions.is_empty() {
            return Ok(writeln!(text, "\nno further agent would lower the mean, at none of {tried} that were tried")?);
        }
        writeln!(text, "\nwhere further agents would help most, one after another ({tried} tried, {where_}):")?;
        text.push_str(&output::table(&self.suggestions, view));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_reads_as_before_and_after_with_what_it_leaves_out() {
        let duration = |nanos: i32| Some(prost_types::Duration { seconds: 0, nanos });
        let load = |sites: f64| {
            Some(PlannedLoad { sites, share: sites / 4.0, work: duration(500_000_000), busy: duration(250_000_000) })
        };
        let agent = |name: &str, change: &str, before, after| PlannedAgent {
            name: name.into(),
            change: change.into(),
            slots: 2,
            before,
            after,
            ..Default::default()
        };
        let outlook = |nanos, longest: &str| {
            Some(PlannedOutlook { mean: duration(nanos), makespan: duration(2 * nanos), longest: longest.into() })
        };
        let mut plan = PlanResponse {
            epoch: 3,
            strategy: "gnp-top1".into(),
            sites: 4,
            sites_elsewhere: 1,
            sites_of_known_size: 1,
            usual_pages: 14,
            usual_bytes: 320_500,
            before: outlook(40_000_000, "a"),
            after: outlook(30_000_000, "b"),
            agents: vec![agent("a", "stays", load(4.0), load(1.0)), agent("b", "added", None, load(3.0))],
            left_out: vec![LeftOutAgent { name: "c".into(), why: "takes no more work: it drains".into() }],
            suggestions: vec![PlannedSuggestion {
                near: "a.cn".into(),
                gain: duration(1_234_000),
                share: 0.25,
                ..Default::default()
            }],
            sampled_sites: 4,
            tried_places: 2,
            ..Default::default()
        };
        let text = Plan::from(plan.clone()).text(true, &View::plain()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "embedding 3, 4 sites, each crawled once by gnp-top1",
                "sizes: of 1 those of the last crawls, 3 are taken to have their mean (14 pages, 320.5 kB)",
                "not counted: 1 site located in another embedding",
                "not counted: c takes no more work: it drains",
            ]
        );
        assert_eq!(
            lines[6].split_whitespace().collect::<Vec<_>>().join(" "),
            "mean round trip 40.00 ms 30.00 ms -25.0 %"
        );
        assert_eq!(lines[8], "busy longest: a before, b after");
        assert!(lines[12].contains('b') && lines[12].contains("added") && lines[12].contains("3.0"), "{text}");
        assert_eq!(
            lines[14],
            "where further agents would help most, one after another (2 places tried, of all sites):"
        );
        assert!(lines[16].contains("a.cn") && lines[16].contains("1.23") && lines[16].ends_with("25.0 %"), "{text}");

        plan.agents.pop();
        plan.suggestions.clear();
        let text = Plan::from(plan).text(true, &View::plain()).unwrap();
        assert!(text.contains("mean round trip 40.00 ms\nmakespan        0.1 s (a is busy longest)"), "{text}");
        assert!(
            text.ends_with("no further agent would lower the mean, at none of 2 places that were tried\n"),
            "{text}"
        );
    }
}
