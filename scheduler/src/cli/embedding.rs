//! `landfall embedding`: shows the map, its errors and its history, and exports its coordinates.

use std::fmt::Write;

use clap::{Subcommand, ValueEnum};
use landfall_proto::v1::{
    AgentError, Epoch, ExportEmbeddingRequest, ExportEmbeddingResponse, FitEmbeddingRequest, ListEpochsRequest,
    PlacedAgent, Residual, ShowEmbeddingRequest, ShowEmbeddingResponse,
};
use prost_types::Timestamp;
use serde::Serialize;

use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::formats::escape_csv;
use crate::cli::output::{self, Column, Format, FormatArgs, Row, View};
use crate::cli::pages::pages;

/// The message while there is no embedding.
const NO_EMBEDDING: &str = "no embedding yet: it is fitted when three landmarks have measured each other; \
                            `landfall embedding fit` reports what is missing";
/// The formula for the distance between two hosts, which is exported with the coordinates.
const FORMULA: &str = "rtt_ms(x, y) = sqrt(sum((x.position_ms - y.position_ms)^2)) + x.height_ms + y.height_ms";

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum EmbeddingCommand {
    /// Show the newest embedding: its landmarks, its errors, and which agents fit badly
    Show {
        #[command(flatten)]
        format: FormatArgs<Residual>,
    },
    /// Fit a new embedding now, and wait for it
    Fit {
        /// How long to wait, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=300))]
        wait: u32,
        #[command(flatten)]
        format: FormatArgs<Epoch>,
    },
    /// List the embeddings, newest first: why each was fitted, and how far it moved the agents
    History {
        /// Maximum number of embeddings; 0: all
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: u64,
        #[command(flatten)]
        format: FormatArgs<Epoch>,
    },
    /// Print every agent's coordinate, from which other programs can predict distances
    #[command(after_help = "\
The predicted round trip between two hosts x and y, in milliseconds, over all dimensions d:
  sqrt(sum of (x_d - y_d)^2) + height of x + height of y
Never compare coordinates of different epochs.")]
    Export {
        /// Output format
        #[arg(short = 'o', long, value_enum, default_value_t = ExportFormat::Json)]
        format: ExportFormat,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ExportFormat {
    Json,
    Csv,
}

impl EmbeddingCommand {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let client = Client::connect(connection).await?;
        let mut embeddings = client.embeddings();
        match self {
            Self::Show { format } => {
                show(&client.answer(embeddings.show_embedding(ShowEmbeddingRequest {}).await)?, &format)
            }
            Self::Fit { wait, format } => {
                let wait = Some(prost_types::Duration { seconds: i64::from(wait), nanos: 0 });
                let answer = client.answer(embeddings.fit_embedding(FitEmbeddingRequest { wait }).await)?;
                match answer.epoch {
                    Some(epoch) => format.print(&[epoch], "", 0),
                    None => Err(anyhow::anyhow!(
                        "no new embedding was fitted within the wait; the request remains: `landfall embedding \
                         history` shows when it is fitted"
                    )),
                }
            }
            Self::History { limit, format } => {
                let answer = pages(limit, async |limit, page_token| {
                    let request = ListEpochsRequest { limit: u32::try_from(limit).unwrap_or(u32::MAX), page_token };
                    client.answer(client.embeddings().list_epochs(request).await)
                });
                let answer = answer.await?;
                format.print(&answer.epochs, &format!("{NO_EMBEDDING}\n"), answer.more)
            }
            Self::Export { format } => {
                let answer = client.answer(embeddings.export_embedding(ExportEmbeddingRequest {}).await)?;
                export(answer, format)
            }
        }
    }
}

impl Row for Epoch {
    const COLUMNS: &'static [Column<Self>] = &[
        (">epoch", |row, _| row.epoch.to_string()),
        ("fitted", |row, view| view.when(row.fitted_at)),
        ("~reason", |row, _| row.reason.clone()),
        (">agents", |row, _| output::number(row.agents.into())),
        (">landmarks", |row, _| row.landmarks.to_string()),
        (">dims", |row, _| row.dimensions.to_string()),
        (">fit error", |row, _| error_cell(Some(row.fit_error))),
        (">mesh error", |row, _| error_cell(row.mesh_error)),
        (">moved ms", |row, _| output::millis_cell(row.median_move)),
    ];
    const NAMES: &'static str = "the numbers of the embeddings";
}

fn error_cell(error: Option<f64>) -> String {
    output::float_cell(error, 3)
}

impl Row for Residual {
    const COLUMNS: &'static [Column<Self>] = &[
        ("from", |row, _| row.from.clone()),
        ("to", |row, _| row.to.clone()),
        (">measured ms", |row, _| output::millis_cell(row.measured)),
        (">predicted ms", |row, _| output::millis_cell(row.predicted)),
    ];
    const NAMES: &'static str = "the pairs with the largest errors";

    fn name(&self, _: &View) -> String {
        format!("{} {}", self.from, self.to)
    }
}

impl Row for AgentError {
    const COLUMNS: &'static [Column<Self>] = &[
        ("agent", |row, _| row.agent.clone()),
        (">median error", |row, _| error_cell(Some(row.median_error))),
        (">distances", |row, _| output::number(row.distances.into())),
    ];
}

fn show(answer: &ShowEmbeddingResponse, format: &FormatArgs<Residual>) -> anyhow::Result<()> {
    match (format.format(), &answer.epoch) {
        (Format::Table, Some(epoch)) => print(&text(epoch, answer, &format.view())),
        (Format::Json, Some(_)) => output::print_json(answer),
        (Format::Json, None) => print("null\n"),
        (Format::Table, None) | (Format::Jsonl | Format::Csv | Format::Names, _) => {
            format.print(&answer.worst, &format!("{NO_EMBEDDING}\n"), 0)
        }
    }
}

fn text(epoch: &Epoch, shown: &ShowEmbeddingResponse, view: &View) -> String {
    let chosen = match shown.landmarks_chosen {
        true => "",
        false => " (none are set: in a fleet of up to nine every agent is one)",
    };
    let mut text = format!(
        "embedding {}, fitted {} ({}): {} agents, {} dimensions\n\
         landmarks: {}{chosen}\n\
         relative error between landmarks {}; median error of all pairs {} when fitted, {} now\n",
        epoch.epoch,
        view.when(epoch.fitted_at),
        epoch.reason,
        epoch.agents,
        epoch.dimensions,
        shown.landmarks.join(", "),
        error_cell(Some(epoch.fit_error)),
        error_cell(epoch.mesh_error),
        error_cell(shown.mesh_error_now),
    );
    section(&mut text, "pairs with the largest errors", &shown.worst, view);
    section(&mut text, "suspects: agents with unusually large errors", &shown.suspects, view);
    section(&mut text, "low confidence: agents with too few measured distances", &shown.low_confidence, view);
    view.fold(&text)
}

/// Appends a table with a title, unless the table is empty.
fn section<R: Row>(text: &mut String, title: &str, rows: &[R], view: &View) {
    if !rows.is_empty() {
        write!(text, "\n{title}\n{}", output::table(rows, view)).expect("a String takes every write");
    }
}

/// The exported coordinates, as printed in JSON.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Export {
    epoch: i64,
    #[serde(serialize_with = "landfall_proto::json::time")]
    fitted_at: Option<Timestamp>,
    dimensions: u32,
    formula: &'static str,
    agents: Vec<PlacedAgent>,
}

fn export(answer: ExportEmbeddingResponse, format: ExportFormat) -> anyhow::Result<()> {
    if answer.epoch.is_none() {
        return Err(anyhow::anyhow!(NO_EMBEDDING));
    }
    let export = Export::of(answer);
    match format {
        ExportFormat::Json => output::print_json(&export),
        ExportFormat::Csv => print(&export.csv()?),
    }
}

impl Export {
    pub(in crate::cli) fn of(answer: ExportEmbeddingResponse) -> Self {
        let epoch = answer.epoch.unwrap_or_default();
        Self {
            epoch: epoch.epoch,
            fitted_at: epoch.fitted_at,
            dimensions: epoch.dimensions,
            formula: FORMULA,
            agents: answer.agents,
        }
    }

    /// The coordinates as CSV, one row per agent. Each dimension has a column, so the header
    /// depends on the embedding.
    fn csv(&self) -> anyhow::Result<String> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let fixed = ["epoch", "agent", "city", "carrier", "landmark", "fit_error", "height_ms"];
        let axes = (1..=self.dimensions).map(|axis| format!("x{axis}_ms"));
        writer.write_record(fixed.into_iter().map(str::to_owned).chain(axes))?;
        for agent in &self.agents {
            let start = [
                self.epoch.to_string(),
                agent.agent.clone(),
                agent.city.clone(),
                agent.carrier.clone(),
                agent.landmark.to_string(),
                agent.fit_error.to_string(),
                agent.height_ms.to_string(),
            ];
            writer.write_record(start.into_iter().chain(agent.position_ms.iter().map(f64::to_string)))?;
        }
        escape_csv(String::from_utf8(writer.into_inner().map_err(csv::IntoInnerError::into_error)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(agent: &str, landmark: bool, position_ms: Vec<f64>) -> PlacedAgent {
        let (city, carrier) = ("Harbin".to_owned(), "CERNET".to_owned());
        PlacedAgent { agent: agent.to_owned(), city, carrier, landmark, position_ms, height_ms: 1.5, fit_error: 0.25 }
    }

    #[test]
    fn an_export_has_all_that_the_formula_needs() {
        let export = Export {
            epoch: 7,
            fitted_at: None,
            dimensions: 2,
            formula: FORMULA,
            agents: vec![placed("a", true, vec![3.0, -4.25]), placed("b,c", false, vec![0.0, 0.5])],
        };
        assert_eq!(
            export.csv().unwrap(),
            "epoch,agent,city,carrier,landmark,fit_error,height_ms,x1_ms,x2_ms\n\
             7,a,Harbin,CERNET,true,0.25,1.5,3,-4.25\n\
             7,\"b,c\",Harbin,CERNET,false,0.25,1.5,0,0.5\n"
        );
        let json = serde_json::to_value(&export).unwrap();
        assert_eq!(json["agents"][0]["position_ms"][1], -4.25);
        assert!(json["formula"].as_str().is_some_and(|formula| formula.contains("height_ms")));
    }

    #[test]
    fn what_is_shown_leaves_empty_tables_out() {
        let epoch = Epoch { epoch: 3, reason: "drift 12 %, 7 % when it was fitted".to_owned(), ..Epoch::default() };
        let shown = ShowEmbeddingResponse {
            mesh_error_now: Some(0.0712),
            landmarks: vec!["a".to_owned(), "b".to_owned()],
            worst: vec![Residual { from: "a".to_owned(), to: "b".to_owned(), ..Residual::default() }],
            ..ShowEmbeddingResponse::default()
        };
        let said = text(&epoch, &shown, &View::plain());
        assert!(said.contains("embedding 3") && said.contains("drift 12 %") && said.contains("0.071 now"), "{said}");
        assert!(said.contains("pairs with the largest errors") && !said.contains("suspects"), "{said}");
        assert!(said.contains("landmarks: a, b (none are set: in a fleet"), "{said}");
        let chosen = ShowEmbeddingResponse { landmarks_chosen: true, ..shown };
        assert!(text(&epoch, &chosen, &View::plain()).contains("landmarks: a, b\n"));
    }
}
