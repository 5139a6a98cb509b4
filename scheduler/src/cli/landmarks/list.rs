//! `landfall landmarks list`: lists the landmarks with their map, and warns of those set by hand
//! that are disconnected.

use clap::Args;
use landfall_proto::json::milliseconds;
use landfall_proto::v1::{Landmark, ListLandmarksRequest, ListLandmarksResponse};

use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::agents::service::{service_tone, service_words};
use crate::cli::connection::Client;
use crate::cli::output::{self, Column, Format, FormatArgs, Row, Tone, View};
use crate::cli::watch_flag::WatchFlag;

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
pub(super) fn print_chosen(answer: ListLandmarksResponse, format: &FormatArgs<Landmark>) -> anyhow::Result<()> {
    print(&text(&without_map(answer), format, &format.view())?)
}

/// Removes the data about the map from the answer, because this map was fitted to the previous
/// landmarks.
pub(super) fn without_map(answer: ListLandmarksResponse) -> ListLandmarksResponse {
    ListLandmarksResponse { epoch: 0, ..answer }
}

/// The text about the map, printed below the table.
pub(super) fn map_text(answer: &ListLandmarksResponse) -> String {
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

#[cfg(test)]
mod tests {
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
}
