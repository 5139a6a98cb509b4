//! `landfall landmarks elect`: elects the landmarks, and explains the election's choice.

use std::fmt::Write;

use clap::Args;
use landfall_proto::json::milliseconds;
use landfall_proto::v1::{
    Diversity, ElectLandmarksRequest, ElectionExplanation, Landmark, LandmarkWorth, UnreachedAgent,
};
use serde::Serialize;

use super::dimensions::dimensions;
use super::list::{map_text, print_chosen, without_map};
use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::{self, Column, Format, FormatArgs, Row, View};

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall landmarks elect --count 9")]
pub(in crate::cli) struct ElectArgs {
    /// Number of landmarks, 3 or more
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(3..))]
    count: u32,
    /// Dimensions of the map, at most count - 1 [default: min(8, count - 1)]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    dims: Option<u32>,
    #[command(flatten)]
    format: FormatArgs<Landmark>,
}

impl ElectArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { count, dims, format } = self;
        let dimensions = dimensions(dims, usize::try_from(count)?)?;
        let client = Client::connect(connection).await?;
        let request = ElectLandmarksRequest { count, dimensions };
        let mut answer = without_map(client.answer(client.fleet().elect_landmarks(request).await)?);
        match answer.explanation.take() {
            Some(explanation) => {
                let map = map_text(&answer);
                show_election(&Election { landmarks: answer.landmarks, explanation }, map, &format)
            }
            None => print_chosen(answer, &format),
        }
    }
}

/// An election, as printed in JSON.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Election {
    pub(in crate::cli) landmarks: Vec<Landmark>,
    #[serde(flatten)]
    pub(in crate::cli) explanation: ElectionExplanation,
}

/// Describes how many cities or carriers have a landmark, and which have none.
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

/// Prints an election and the reasons for its choice. In CSV, in JSON lines and with `--quiet`,
/// prints only the landmarks.
fn show_election(election: &Election, map: String, format: &FormatArgs<Landmark>) -> anyhow::Result<()> {
    let view = format.view();
    match format.format() {
        Format::Table => {
            print(&(output::list(&election.landmarks, &view) + &view.fold(&(map + &election.text(&view)))))
        }
        Format::Json => output::print_json(election),
        Format::Jsonl | Format::Csv | Format::Names => format.print(&election.landmarks, "", 0),
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
                "\nno agent could reach the beacons of these: open their ports; a fleet of ten or more elects only \
                 agents that were reached\n{}",
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
