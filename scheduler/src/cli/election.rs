//! How `landfall landmarks elect` explains its choice.

use std::fmt::Write;

use landfall_proto::v1::{Diversity, ElectionExplanation, LandmarkWorth, UnreachedAgent};
use serde::Serialize;

use super::landmarks::LandmarkRow;
use super::output::{self, Format, Row, View};
use crate::exit::print;

/// An election, as printed.
#[derive(Debug, Serialize)]
pub(super) struct Election {
    landmarks: Vec<LandmarkRow>,
    /// Connected agents that are no landmarks.
    others: u32,
    coverage: Vec<CoverageRow>,
    median_ms: Option<f64>,
    farthest_agent: String,
    farthest_ms: Option<f64>,
    uncovered: Vec<String>,
    cities: Kinds,
    carriers: Kinds,
    worth: Vec<WorthRow>,
    unreached: Vec<UnreachedRow>,
}

/// Kinds of agents with and without a landmark, as printed.
#[derive(Debug, Default, Serialize)]
struct Kinds {
    with: Vec<String>,
    without: Vec<String>,
}

impl From<Option<Diversity>> for Kinds {
    fn from(kinds: Option<Diversity>) -> Self {
        let Diversity { with, without } = kinds.unwrap_or_default();
        Self { with, without }
    }
}

impl Kinds {
    fn text(&self, one: &str, more: &str) -> String {
        let count = self.with.len();
        let missing = match self.without.as_slice() {
            [] => String::new(),
            without => format!("; none in {}", without.join(", ")),
        };
        format!("{count} {}{missing}", if count == 1 { one } else { more })
    }
}

/// How many agents have a landmark within a distance, as printed.
#[derive(Debug, Default, Serialize)]
struct CoverageRow {
    within_ms: Option<f64>,
    agents: u32,
}

/// What a landmark is worth, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct WorthRow {
    name: String,
    nearest_to: u32,
    adds_ms: Option<f64>,
}

impl From<LandmarkWorth> for WorthRow {
    fn from(worth: LandmarkWorth) -> Self {
        Self { name: worth.name, nearest_to: worth.nearest_to, adds_ms: output::millis(worth.adds.as_ref()) }
    }
}

impl Row for WorthRow {
    const COLUMNS: &'static [&'static str] = &["landmark", ">nearest to", ">adds ms"];

    fn cells(&self, _: &View) -> Vec<String> {
        vec![self.name.clone(), output::count_cell(self.nearest_to), output::millis_cell(self.adds_ms)]
    }
}

/// An agent nobody could reach, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct UnreachedRow {
    name: String,
    beacon_url: String,
    port: u32,
    failure: String,
}

impl From<UnreachedAgent> for UnreachedRow {
    fn from(unreached: UnreachedAgent) -> Self {
        let UnreachedAgent { name, beacon_url, port, failure } = unreached;
        Self { name, beacon_url, port, failure }
    }
}

impl Row for UnreachedRow {
    const COLUMNS: &'static [&'static str] = &["agent", ">port", "~last failure", "+beacon"];

    fn cells(&self, _: &View) -> Vec<String> {
        let port = if self.port == 0 { "-".to_owned() } else { self.port.to_string() };
        let beacon = if self.beacon_url.is_empty() { "runs none" } else { &self.beacon_url };
        let failure = if self.failure.is_empty() { "not tried yet" } else { &self.failure };
        vec![self.name.clone(), port, failure.to_owned(), beacon.to_owned()]
    }
}

/// Prints an election and why it is a good one; as CSV the landmarks alone.
pub(super) fn show(
    explanation: ElectionExplanation,
    (landmarks, map): (Vec<LandmarkRow>, String),
    format: Format,
    view: &View,
) -> anyhow::Result<()> {
    let election = Election::new(explanation, landmarks);
    match format {
        Format::Table => print(&(output::table(&election.landmarks, view) + &view.fold(&(map + &election.text(view))))),
        Format::Json => output::print_json(&election),
        Format::Csv => output::print_rows(&election.landmarks, format, view),
    }
}

impl Election {
    pub(super) fn new(told: ElectionExplanation, landmarks: Vec<LandmarkRow>) -> Self {
        let coverage = told
            .coverage
            .into_iter()
            .map(|reach| CoverageRow { within_ms: output::millis(reach.within.as_ref()), agents: reach.agents });
        Self {
            landmarks,
            others: told.others,
            coverage: coverage.collect(),
            median_ms: output::millis(told.median.as_ref()),
            farthest_agent: told.farthest_agent,
            farthest_ms: output::millis(told.farthest.as_ref()),
            uncovered: told.uncovered,
            cities: told.cities.into(),
            carriers: told.carriers.into(),
            worth: told.landmarks.into_iter().map(Into::into).collect(),
            unreached: told.unreached.into_iter().map(Into::into).collect(),
        }
    }

    fn text(&self, view: &View) -> String {
        let mut text = String::new();
        let reaches: Vec<String> = self
            .coverage
            .iter()
            .filter_map(|reach| Some(format!("{} within {:.0} ms", reach.agents, reach.within_ms?)))
            .collect();
        let mut say = |line: String| writeln!(text, "{line}").expect("a String takes every write");
        say(format!("\ncoverage of {} other agents: {}", self.others, reaches.join(", ")));
        if let (Some(median), Some(farthest)) = (self.median_ms, self.farthest_ms) {
            let agent = &self.farthest_agent;
            say(format!("nearest landmark: median {median:.1} ms, farthest {farthest:.1} ms ({agent})"));
        }
        if !self.uncovered.is_empty() {
            say(format!("no landmark measured: {}", self.uncovered.join(", ")));
        }
        let (cities, carriers) = (self.cities.text("city", "cities"), self.carriers.text("carrier", "carriers"));
        say(format!("diversity: {cities}; {carriers}"));
        say(format!(
            "\nwhat each adds: how much farther the nearest landmark would be without it\n{}",
            output::table(&self.worth, view).trim_end()
        ));
        if !self.unreached.is_empty() {
            let table = output::table(&self.unreached, view);
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
        let told = ElectionExplanation {
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
        let election = Election::new(told, Vec::new());
        let text = election.text(&View::plain());
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
        let json = serde_json::to_value(&election).unwrap();
        assert_eq!(json["worth"][0]["adds_ms"], 3.0);
        assert_eq!(json["unreached"][0]["port"], 7180);
        assert_eq!(json["coverage"][1]["agents"], 20);
    }
}
