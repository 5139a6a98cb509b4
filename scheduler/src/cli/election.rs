//! How `landfall landmarks elect` explains its choice.

use std::fmt::Write;

use landfall_proto::json::milliseconds;
use landfall_proto::v1::{Diversity, ElectionExplanation, Landmark, LandmarkWorth, UnreachedAgent};
use serde::Serialize;

use super::output::{self, Column, Format, Row, View};
use crate::exit::print;

/// An election, as printed.
#[derive(Debug, Serialize)]
pub(super) struct Election {
    pub(super) landmarks: Vec<Landmark>,
    #[serde(flatten)]
    pub(super) explanation: ElectionExplanation,
}

/// How many kinds have a landmark, and which have none.
fn kinds(kinds: Option<&Diversity>, one: &str, more: &str) -> String {
    let Diversity { with, without } = kinds.cloned().unwrap_or_default();
    let missing = if without.is_empty() { String::new() } else { format!("; none in {}", without.join(", ")) };
    format!("{} {}{missing}", with.len(), if with.len() == 1 { one } else { more })
}

impl Row for LandmarkWorth {
    const COLUMNS: &'static [Column<Self>] = &[
        ("landmark", |row, _| row.name.clone()),
        (">nearest to", |row, _| output::count_cell(row.nearest_to)),
        (">adds ms", |row, _| output::millis_cell(row.adds)),
    ];
}

impl Row for UnreachedAgent {
    const COLUMNS: &'static [Column<Self>] = &[
        ("agent", |row, _| row.name.clone()),
        (">port", |row, _| if row.port == 0 { "-".to_owned() } else { row.port.to_string() }),
        ("~last failure", |row, _| or(&row.failure, "not tried yet")),
        ("+beacon", |row, _| or(&row.beacon_url, "runs none")),
    ];
}

fn or(text: &str, nothing: &str) -> String {
    (if text.is_empty() { nothing } else { text }).to_owned()
}

/// Prints an election and why it is a good one; as CSV the landmarks alone.
pub(super) fn show(election: &Election, map: String, format: Format, view: &View) -> anyhow::Result<()> {
    match format {
        Format::Table => print(&(output::table(&election.landmarks, view) + &view.fold(&(map + &election.text(view))))),
        Format::Json => output::print_json(election),
        Format::Csv => output::print_rows(&election.landmarks, format, view),
    }
}

impl Election {
    fn text(&self, view: &View) -> String {
        let Self { explanation: told, .. } = self;
        let mut text = String::new();
        let reaches: Vec<String> = told
            .coverage
            .iter()
            .filter_map(|reach| Some(format!("{} within {:.0} ms", reach.agents, milliseconds(reach.within)?)))
            .collect();
        let mut say = |line: String| writeln!(text, "{line}").expect("a String takes every write");
        say(format!("\ncoverage of {} other agents: {}", told.others, reaches.join(", ")));
        if let (Some(median), Some(farthest)) = (milliseconds(told.median), milliseconds(told.farthest)) {
            let agent = &told.farthest_agent;
            say(format!("nearest landmark: median {median:.1} ms, farthest {farthest:.1} ms ({agent})"));
        }
        if !told.uncovered.is_empty() {
            say(format!("no landmark measured: {}", told.uncovered.join(", ")));
        }
        let cities = kinds(told.cities.as_ref(), "city", "cities");
        let carriers = kinds(told.carriers.as_ref(), "carrier", "carriers");
        say(format!("diversity: {cities}; {carriers}"));
        say(format!(
            "\nwhat each adds: how much farther the nearest landmark would be without it\n{}",
            output::table(&told.landmarks, view).trim_end()
        ));
        if !told.unreached.is_empty() {
            let table = output::table(&told.unreached, view);
            say(format!(
                "\nnobody could reach the beacons of these: open their ports; ten agents and more elect only who was reached\n{}",
                table.trim_end()
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::Coverage;

    use super::*;

    #[test]
    fn an_election_says_what_it_covers_what_each_adds_and_who_cannot_be_reached() {
        let millis = |millis: i32| Some(prost_types::Duration { seconds: 0, nanos: millis * 1_000_000 });
        let explanation = ElectionExplanation {
            others: 21,
            coverage: vec![Coverage { within: millis(10), agents: 12 }, Coverage { within: millis(50), agents: 20 }],
            median: millis(9),
            farthest_agent: "harbin-cernet".to_owned(),
            farthest: millis(61),
            cities: Some(Diversity { with: vec!["Beijing".to_owned()], without: vec!["Harbin".to_owned()] }),
            landmarks: vec![LandmarkWorth { name: "beijing-telecom".to_owned(), nearest_to: 7, adds: millis(3) }],
            unreached: vec![UnreachedAgent {
                name: "shanghai-unicom".to_owned(),
                beacon_url: "http://192.0.2.7:7180/".to_owned(),
                port: 7180,
                failure: "connect: timed out".to_owned(),
            }],
            ..ElectionExplanation::default()
        };
        let text = Election { landmarks: Vec::new(), explanation }.text(&View::plain());
        for said in [
            "coverage of 21 other agents: 12 within 10 ms, 20 within 50 ms",
            "nearest landmark: median 9.0 ms, farthest 61.0 ms (harbin-cernet)",
            "1 city; none in Harbin",
            "beijing-telecom",
            "7180",
            "connect: timed out",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}
