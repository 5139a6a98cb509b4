//! `landfall landmarks`: lists the landmarks with their map, elects them or sets them by hand, and
//! releases an agent from quarantine.

use std::collections::HashSet;
use std::fmt::Write;

use clap::{Args, Subcommand};
use landfall_proto::json::milliseconds;
use landfall_proto::v1::{
    Diversity, ElectLandmarksRequest, ElectionExplanation, Landmark, LandmarkWorth, ListLandmarksRequest,
    ListLandmarksResponse, SetLandmarksRequest, TrustAgentRequest, UnreachedAgent,
};
use serde::Serialize;

use crate::app::exit::{print, usage};
use crate::cli::ConnectionArgs;
use crate::cli::agents::list_and_show::{service_tone, service_words};
use crate::cli::connection::Client;
use crate::cli::output::{self, Column, Format, FormatArgs, Row, Tone, View};
use crate::cli::watch_flag::WatchFlag;

#[derive(Debug, Subcommand)]
pub(super) enum LandmarksCommand {
    /// Set the landmarks by hand, replacing the current ones
    Set(SetArgs),
    /// Remove all landmarks; in a fleet of up to nine agents, every agent then measures each site
    Clear(ClearArgs),
    /// List the landmarks
    List(ListArgs),
    /// Release an agent from quarantine; its measurements are deleted, and it measures again
    Trust(TrustArgs),
    /// Elect the landmarks by the round trips between agents, replacing the current ones
    Elect(ElectArgs),
}

impl LandmarksCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Set(args) => args.run(connection).await,
            Self::Clear(args) => args.run(connection).await,
            Self::List(args) => args.run(connection).await,
            Self::Trust(args) => args.run(connection).await,
            Self::Elect(args) => args.run(connection).await,
        }
    }
}

/// Minimum number of landmarks needed to locate a site.
pub(super) const FEWEST: usize = 3;

#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
    #[command(flatten)]
    format: FormatArgs<Landmark>,
    #[command(flatten)]
    watch: WatchFlag,
}

impl ListArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { format, watch } = self;
        let ask = async |client: &Client| client.answer(client.fleet().list_landmarks(ListLandmarksRequest {}).await);
        watch.print(connection, &format, ask, |answer, view| text(answer, &format, view)).await
    }
}

/// Prints landmarks that were just chosen. The answer's map was fitted to the previous landmarks,
/// so it is not shown.
fn print_chosen(answer: ListLandmarksResponse, format: &FormatArgs<Landmark>) -> anyhow::Result<()> {
    print(&text(&without_map(answer), format, &format.view())?)
}

/// Removes the data about the map from the answer, because this map was fitted to the previous
/// landmarks.
pub(super) fn without_map(answer: ListLandmarksResponse) -> ListLandmarksResponse {
    ListLandmarksResponse { epoch: 0, ..answer }
}

/// The text about the map, printed below the table.
fn map_text(answer: &ListLandmarksResponse) -> String {
    let ListLandmarksResponse { landmarks, dimensions, epoch, fit_error, .. } = answer;
    let s = if *dimensions == 1 { "" } else { "s" };
    match (epoch, landmarks.is_empty()) {
        (0, true) => "no landmarks are set: in a fleet of up to nine every agent measures each site; ten or more need \
             landmarks: run `landfall landmarks elect --count 9`\n"
            .to_owned(),
        (epoch, true) => format!(
            "no landmarks are set: in a fleet of up to nine every agent measures each site and is a landmark of map \
             {epoch}; ten or more need landmarks: run `landfall landmarks elect --count 9`\n"
        ),
        (0, false) if landmarks.len() < FEWEST => {
            format!(
                "no map: a map needs three landmarks, but there {}\n",
                if landmarks.len() == 1 { "is 1" } else { "are 2" }
            )
        }
        (0, false) => {
            format!("{dimensions} dimension{s}, no map yet: `landfall landmarks list` shows when there is one\n")
        }
        (epoch, false) => format!("{dimensions} dimension{s}, map {epoch}, relative error {fit_error:.3}\n"),
    }
}

/// Warnings about disconnected landmarks that were set by hand, because only an operator can
/// replace them.
fn warnings(rows: &[Landmark]) -> String {
    let lost = rows.iter().filter(|row| !row.elected).filter_map(|row| Some((&row.name, milliseconds(row.away_for)?)));
    lost.map(|(name, away)| {
        format!(
            "warning: {name}, set by hand, has been disconnected for {:.0} min and is not replaced automatically: set \
             other landmarks, or elect them\n",
            away / 60e3
        )
    })
    .collect()
}

fn text(answer: &ListLandmarksResponse, format: &FormatArgs<Landmark>, view: &View) -> anyhow::Result<String> {
    let (rows, map) = (&answer.landmarks, map_text(answer));
    match format.format() {
        Format::Table if rows.is_empty() => Ok(view.fold(&map)),
        Format::Table => Ok(output::list(rows, view) + &view.fold(&(map + &warnings(rows)))),
        _ => format.text(rows, "", 0, view),
    }
}

impl Row for Landmark {
    const COLUMNS: &'static [Column<Self>] = &[
        ("name", |row, _| row.name.clone()),
        ("city", |row, _| row.city.clone()),
        // The answer lacks the reason for a pause, which `landfall agents list` shows.
        ("!service", |row, _| service_words(row.service(), "see landfall agents list")),
        ("chosen by", |row, _| (if row.elected { "election" } else { "hand" }).to_owned()),
        ("~reason", |row, _| row.reason.clone()),
        ("+carrier", |row, _| row.carrier.clone()),
    ];

    fn tone(&self) -> Tone {
        service_tone(self.service())
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall landmarks set beijing-telecom shanghai-unicom harbin-cernet")]
pub(super) struct SetArgs {
    /// Agents, by name
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Dimensions of the map, at most landmarks - 1 [default: min(8, landmarks - 1)]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    dims: Option<u32>,
    #[command(flatten)]
    format: FormatArgs<Landmark>,
}

impl SetArgs {
    async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { names, dims, format } = self;
        let mut seen = HashSet::new();
        if let Some(name) = names.iter().find(|name| !seen.insert(name.as_str())) {
            return Err(usage(format!("the landmark '{name}' is named twice")));
        }
        let dimensions = dimensions(dims, names.len())?;
        let client = Client::connect(connection).await?;
        if names.len() < FEWEST {
            eprintln!("{}", too_few(names.len()));
        }
        let request = SetLandmarksRequest { names, dimensions };
        print_chosen(client.answer(client.fleet().set_landmarks(request).await)?, &format)
    }
}

#[derive(Debug, Args)]
pub(super) struct ClearArgs {
    #[command(flatten)]
    format: FormatArgs<Landmark>,
}

impl ClearArgs {
    async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let client = Client::connect(connection).await?;
        let cleared = client.fleet().set_landmarks(SetLandmarksRequest::default()).await;
        print_chosen(client.answer(cleared)?, &self.format)
    }
}

/// A warning that there are too few landmarks to locate a site.
fn too_few(landmarks: usize) -> String {
    let s = if landmarks == 1 { "" } else { "s" };
    format!(
        "warning: only {landmarks} landmark{s} measure{} each site, but its distance to other agents cannot be \
         estimated with fewer than three; `landfall landmarks clear` removes them",
        if s.is_empty() { "s" } else { "" }
    )
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall landmarks elect --count 9")]
pub(super) struct ElectArgs {
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
    async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
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

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall landmarks trust beijing-telecom")]
pub(super) struct TrustArgs {
    /// The agent, by name
    #[arg(value_name = "NAME")]
    name: String,
}

impl TrustArgs {
    async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { name } = self;
        let client = Client::connect(connection).await?;
        let released =
            client.answer(client.fleet().trust_agent(TrustAgentRequest { name: name.clone() }).await)?.released;
        print(&match released {
            true => format!("{name} left quarantine; its measurements were deleted, and it measures again\n"),
            false => format!("{name} is not quarantined\n"),
        })
    }
}

/// Converts the number of dimensions for the request, in which 0 means the default. Refuses more
/// dimensions than the landmarks can span.
pub(super) fn dimensions(asked: Option<u32>, landmarks: usize) -> anyhow::Result<u32> {
    let Some(asked) = asked else { return Ok(0) };
    let most = landmarks.saturating_sub(1);
    if usize::try_from(asked)? > most {
        let s = if landmarks == 1 { "" } else { "s" };
        return Err(usage(format!("--dims {asked} is too many for {landmarks} landmark{s}: give at most {most}")));
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::Coverage;

    use super::*;

    #[test]
    fn a_new_choice_does_not_show_the_map_of_the_former_one() {
        let answer = ListLandmarksResponse {
            landmarks: vec![Landmark::default(); 3],
            dimensions: 1,
            epoch: 4,
            fit_error: 0.05,
            explanation: None,
        };
        assert_eq!(map_text(&answer), "1 dimension, map 4, relative error 0.050\n");
        let chosen = without_map(answer);
        assert!(map_text(&chosen).starts_with("1 dimension, no map yet"), "{}", map_text(&chosen));
        let few = ListLandmarksResponse { landmarks: vec![Landmark::default()], ..chosen };
        assert_eq!(map_text(&few), "no map: a map needs three landmarks, but there is 1\n");
    }

    #[test]
    fn where_none_is_chosen_the_map_has_all_for_landmarks() {
        let none = ListLandmarksResponse { epoch: 4, ..ListLandmarksResponse::default() };
        assert!(map_text(&none).contains("is a landmark of map 4"), "{}", map_text(&none));
        let unmapped = map_text(&ListLandmarksResponse::default());
        assert!(
            unmapped.starts_with("no landmarks are set: in a fleet of up to nine") && !unmapped.contains("map"),
            "{unmapped}"
        );
    }

    #[test]
    fn only_landmarks_set_by_hand_that_are_away_are_warned_about() {
        let row = |name: &str, elected, away_for| Landmark {
            name: name.to_owned(),
            elected,
            away_for,
            ..Landmark::default()
        };
        let away = Some(prost_types::Duration { seconds: 9_000, nanos: 0 });
        let rows = [row("a", false, None), row("b", true, away), row("c", false, away)];
        let said = warnings(&rows);
        assert!(said.starts_with("warning: c, set by hand, has been disconnected for 150 min"), "{said}");
        assert_eq!(said.lines().count(), 1);
    }

    #[test]
    fn too_few_landmarks_are_warned_about() {
        assert!(too_few(1).starts_with("warning: only 1 landmark measures each site, but its distance"));
        assert!(too_few(2).starts_with("warning: only 2 landmarks measure each"));
    }

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

    #[test]
    fn more_dimensions_than_landmarks_span_are_refused() {
        assert_eq!(dimensions(None, 9).unwrap(), 0);
        assert_eq!(dimensions(Some(8), 9).unwrap(), 8);
        let refused = dimensions(Some(12), 9).unwrap_err().to_string();
        assert_eq!(refused, "--dims 12 is too many for 9 landmarks: give at most 8");
    }
}
