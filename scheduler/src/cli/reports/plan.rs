//! `landfall plan`: predicts the performance of a changed fleet on the sites that are already
//! located, and suggests where new agents would help most.

use std::fmt::Write;
use std::str::FromStr;

use clap::Args;
use landfall_proto::json::milliseconds;
use landfall_proto::v1::{
    LeftOutAgent, PlanRequest, PlanResponse, PlannedAddition, PlannedAgent, PlannedLoad, PlannedSuggestion,
};
use prost_types::Duration;

use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::{self, Column, Row, ShowFormatArgs, View, counted, share_cell, span_cell};
use crate::cli::sites::show_and_explain::globe_cell;
use crate::model::Strategy;

/// Maximum number of agents named in the line about agents that the plan leaves out.
const NAMED_AT_MOST: usize = 10;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall plan                                                            the fleet as it is
  landfall plan --add city=Chengdu,carrier=Telecom,near=www.example.cn
  landfall plan --remove harbin-cernet --add city=Harbin,carrier=Unicom,near=harbin-cernet,slots=8
  landfall plan --suggest 3                                                where the next agents would help most

It changes nothing. Distances come from the map; each located site counts as crawled once.")]
pub(in crate::cli) struct PlanArgs {
    /// An agent to add: city=CITY,carrier=CARRIER,near=HOST and optionally slots=N,name=NAME. HOST
    /// is a located site or an agent with about the round trips that the new agent will have. May be
    /// repeated, up to 100 times
    #[arg(long, value_name = "city=CITY,carrier=CARRIER,near=HOST")]
    add: Vec<Addition>,
    /// An agent to remove; may be repeated
    #[arg(long, value_name = "NAME")]
    remove: Vec<String>,
    /// Suggest this many places, 1 to 20, where further agents would help most after these changes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20))]
    suggest: Option<u32>,
    /// How sites are assigned to agents: random, gnp-top1 or gnp-top3 [default: gnp-top3]
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<Strategy>,
    #[command(flatten)]
    format: ShowFormatArgs<PlannedAgent>,
}

impl PlanArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { add, remove, suggest, strategy, format } = self;
        let client = Client::connect(connection).await?;
        let request = PlanRequest {
            add: add.into_iter().map(|Addition(agent)| agent).collect(),
            remove,
            strategy: strategy.map(|strategy| strategy.to_string()).unwrap_or_default(),
            suggest: suggest.unwrap_or_default(),
        };
        let plan = client.answer(client.reports().plan(request).await)?;
        format.print(&plan, |plan, view| text(plan, suggest.is_some(), view))
    }
}

/// An agent to add, as parsed from the value of `--add`.
#[derive(Debug, Clone, PartialEq)]
struct Addition(PlannedAddition);

impl FromStr for Addition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut name, mut city, mut carrier, mut near, mut slots) = (None, None, None, None, None);
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!("'{part}' is not KEY=VALUE: give city=CITY,carrier=CARRIER,near=HOST"));
            };
            let (key, value) = (key.trim(), value.trim());
            let slot = match key {
                "name" => &mut name,
                "city" => &mut city,
                "carrier" => &mut carrier,
                "near" => &mut near,
                "slots" => &mut slots,
                _ => {
                    return Err(format!("unknown key '{key}': the keys are city, carrier, near, slots and name"));
                }
            };
            if value.is_empty() {
                return Err(format!("{key}= is empty"));
            }
            if slot.replace(value.to_owned()).is_some() {
                return Err(format!("{key}= is given twice"));
            }
        }
        let needed = |value: Option<String>, key: &str| value.ok_or_else(|| format!("{key}= is missing"));
        let slots = slots.map(|slots| match slots.parse::<u32>() {
            Ok(number @ 1..=10_000) => Ok(number),
            _ => Err(format!("slots={slots} is not a number from 1 to 10000")),
        });
        Ok(Self(PlannedAddition {
            name: name.unwrap_or_default(),
            city: needed(city, "city")?,
            carrier: needed(carrier, "carrier")?,
            near: needed(near, "near")?,
            slots: slots.transpose()?,
        }))
    }
}

/// An agent, as a row of the table for plans that change nothing.
#[derive(Debug)]
struct UnchangedAgent(PlannedAgent);

#[derive(Debug)]
struct RankedSuggestion(u32, PlannedSuggestion);

impl Row for PlannedAgent {
    const COLUMNS: &'static [Column<Self>] = &[
        ("agent", |row, _| row.name.clone()),
        ("change", |row, _| row.change.clone()),
        (">sites", |row, _| sites_of(row.before.as_ref())),
        (">after", |row, _| sites_of(row.after.as_ref())),
        (">busy", |row, _| span_cell(row.before.as_ref().and_then(|load| load.busy))),
        (">after", |row, _| span_cell(row.after.as_ref().and_then(|load| load.busy))),
        ("+>slots", |row, _| row.slots.to_string()),
        ("+>share", |row, _| share_of(row.before.as_ref())),
        ("+>after", |row, _| share_of(row.after.as_ref())),
        ("+>work", |row, _| span_cell(row.before.as_ref().and_then(|load| load.work))),
        ("+>after", |row, _| span_cell(row.after.as_ref().and_then(|load| load.work))),
    ];
}

impl Row for UnchangedAgent {
    const COLUMNS: &'static [Column<Self>] = &[
        ("agent", |row, _| row.0.name.clone()),
        (">slots", |row, _| row.0.slots.to_string()),
        (">sites", |row, _| sites_of(row.0.before.as_ref())),
        (">share", |row, _| share_of(row.0.before.as_ref())),
        (">work", |row, _| span_cell(row.0.before.as_ref().and_then(|load| load.work))),
        (">busy", |row, _| span_cell(row.0.before.as_ref().and_then(|load| load.busy))),
    ];
}

impl Row for RankedSuggestion {
    const COLUMNS: &'static [Column<Self>] = &[
        (">rank", |row, _| row.0.to_string()),
        ("near", |row, _| row.1.near.clone()),
        ("position", |row, _| globe_cell(row.1.position.as_ref())),
        (">saves ms", |row, _| fine_cell(row.1.gain)),
        (">mean ms then", |row, _| fine_cell(row.1.mean)),
        (">takes", |row, _| share_cell(row.1.share)),
    ];
}

fn sites_of(load: Option<&PlannedLoad>) -> String {
    output::float_cell(load.map(|load| load.sites), 1)
}

fn share_of(load: Option<&PlannedLoad>) -> String {
    load.map_or_else(|| "-".to_owned(), |load| share_cell(load.share))
}

/// Formats milliseconds with two decimals, because a suggestion may gain less than a tenth of
/// a millisecond.
fn fine_cell(duration: Option<Duration>) -> String {
    output::float_cell(milliseconds(duration), 2)
}

/// Formats the relative change, in per cent.
fn change_cell(before: Option<Duration>, after: Option<Duration>) -> String {
    match (milliseconds(before), milliseconds(after)) {
        (Some(before), Some(after)) if before > 0.0 => format!("{:+.1} %", (after / before - 1.0) * 100.0),
        _ => "-".to_owned(),
    }
}

pub(in crate::cli) fn text(plan: &PlanResponse, suggested: bool, view: &View) -> anyhow::Result<String> {
    let mut text = String::new();
    write_basis(plan, &mut text)?;
    let changed = plan.agents.iter().any(|agent| agent.change != "stays");
    let [before, after] = [&plan.before, &plan.after].map(|outlook| outlook.clone().unwrap_or_default());
    text.push('\n');
    if changed {
        let rows = [
            ("mean round trip", fine_cell(before.mean) + " ms", fine_cell(after.mean) + " ms"),
            ("makespan", span_cell(before.makespan), span_cell(after.makespan)),
        ];
        let changes = [change_cell(before.mean, after.mean), change_cell(before.makespan, after.makespan)];
        writeln!(text, "{:<16} {:>12} {:>12} {:>10}", "", "before", "after", "change")?;
        for ((what, before, after), change) in rows.into_iter().zip(changes) {
            writeln!(text, "{what:<16} {before:>12} {after:>12} {change:>10}")?;
        }
        writeln!(text, "busy longest: {} before, {} after\n", before.longest, after.longest)?;
        text.push_str(&output::table(&plan.agents, view));
    } else {
        writeln!(text, "mean round trip {} ms", fine_cell(before.mean))?;
        writeln!(text, "makespan        {} ({} is busy longest)\n", span_cell(before.makespan), before.longest)?;
        let sole: Vec<UnchangedAgent> = plan.agents.iter().cloned().map(UnchangedAgent).collect();
        text.push_str(&output::table(&sole, view));
    }
    if suggested {
        write_suggestions(plan, &mut text, view)?;
    }
    Ok(view.fold(&text))
}

/// Writes the data on which the figures are based, and the sites that are left out.
fn write_basis(plan: &PlanResponse, text: &mut String) -> anyhow::Result<()> {
    let PlanResponse { epoch, strategy, sites, .. } = plan;
    writeln!(text, "embedding {epoch}, {}, each crawled once by {strategy}", counted(*sites, "site"))?;
    let unknown = sites.saturating_sub(plan.sites_of_known_size);
    let usual = format!("{} pages, {}", output::number(plan.usual_pages.into()), output::bytes_cell(plan.usual_bytes));
    match (plan.sites_of_known_size, unknown) {
        (0, _) => writeln!(text, "sizes: no site has been crawled yet, so each is assumed to have {usual}")?,
        (_, 0) => writeln!(text, "sizes: those of the last crawls")?,
        (known, _) => writeln!(
            text,
            "sizes: {} from the sites' last crawls; {} assumed to be the mean of these ({usual})",
            output::number(known),
            output::number(unknown)
        )?,
    }
    if plan.sites_in_several_places > 0 {
        writeln!(
            text,
            "not counted: {} suspected to be in several places",
            counted(plan.sites_in_several_places, "site")
        )?;
    }
    if plan.sites_elsewhere > 0 {
        writeln!(text, "not counted: {} located in another embedding", counted(plan.sites_elsewhere, "site"))?;
    }
    for LeftOutAgent { name, why } in plan.left_out.iter().take(NAMED_AT_MOST) {
        writeln!(text, "not counted: {name} {why}")?;
    }
    let more = plan.left_out.len().saturating_sub(NAMED_AT_MOST);
    if more > 0 {
        writeln!(text, "not counted: {more} more agents")?;
    }
    Ok(())
}

fn write_suggestions(plan: &PlanResponse, text: &mut String, view: &View) -> anyhow::Result<()> {
    let (tried, sampled) = (counted(plan.tried_places, "place"), counted(plan.sampled_sites, "site"));
    let where_ = if plan.sampled_sites < plan.sites {
        format!("found with a sample of {sampled}, computed for all")
    } else {
        "of all sites".to_owned()
    };
    if plan.suggestions.is_empty() {
        return Ok(writeln!(text, "\nno further agent would lower the mean, at any of {tried} that were tried")?);
    }
    writeln!(text, "\nwhere further agents would help most, one after another ({tried} tried, {where_}):")?;
    let ranked: Vec<RankedSuggestion> =
        (1..).zip(&plan.suggestions).map(|(rank, one)| RankedSuggestion(rank, one.clone())).collect();
    text.push_str(&output::table(&ranked, view));
    Ok(())
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::PlannedOutlook;

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
            left_out: vec![LeftOutAgent { name: "c".into(), why: "takes no new work because it is draining".into() }],
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
        let text = self::text(&plan, true, &View::plain()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "embedding 3, 4 sites, each crawled once by gnp-top1",
                "sizes: 1 from the sites' last crawls; 3 assumed to be the mean of these (14 pages, 320.5 kB)",
                "not counted: 1 site located in another embedding",
                "not counted: c takes no new work because it is draining",
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
        let text = self::text(&plan, true, &View::plain()).unwrap();
        assert!(text.contains("mean round trip 40.00 ms\nmakespan        0.1 s (a is busy longest)"), "{text}");
        assert!(
            text.ends_with("no further agent would lower the mean, at any of 2 places that were tried\n"),
            "{text}"
        );
    }

    #[test]
    fn an_addition_is_read_and_what_is_wrong_with_one_is_said() {
        let read = |text: &str| text.parse::<Addition>().map(|addition| addition.0);
        let added = PlannedAddition {
            name: String::new(),
            city: "Chengdu".into(),
            carrier: "Telecom".into(),
            near: "www.a.cn".into(),
            slots: None,
        };
        assert_eq!(read("city=Chengdu,carrier=Telecom,near=www.a.cn"), Ok(added.clone()));
        let whole = PlannedAddition { name: "c-2".into(), slots: Some(8), ..added };
        assert_eq!(read("near=www.a.cn, carrier=Telecom,slots=8,city=Chengdu,name=c-2"), Ok(whole));
        for (text, said) in [
            ("city=Chengdu,carrier=Telecom", "near= is missing"),
            ("carrier=Telecom,near=a", "city= is missing"),
            ("city=C,near=a", "carrier= is missing"),
            (
                "city=C,carrier=T,near=a,colour=red",
                "unknown key 'colour': the keys are city, carrier, near, slots and name",
            ),
            ("city=C,carrier=T,carrier=U,near=a", "carrier= is given twice"),
            ("city=,carrier=T,near=a", "city= is empty"),
            ("city=C,carrier=T,near=a,slots=0", "slots=0 is not a number from 1 to 10000"),
            ("Chengdu", "'Chengdu' is not KEY=VALUE: give city=CITY,carrier=CARRIER,near=HOST"),
        ] {
            assert_eq!(read(text), Err(said.to_owned()));
        }
    }
}
