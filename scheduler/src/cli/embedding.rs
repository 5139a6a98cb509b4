//! `landfall embedding`: the map, how well it fits, how it came about, and its coordinates for others.

use std::fmt::Write;

use clap::{Subcommand, ValueEnum};
use landfall_proto::v1::{
    AgentError, Epoch, ExportEmbeddingRequest, ExportEmbeddingResponse, FitEmbeddingRequest, ListEpochsRequest,
    PlacedAgent, Residual, ShowEmbeddingRequest, ShowEmbeddingResponse,
};
use serde::Serialize;

use super::ConnectionArgs;
use super::client::Client;
use super::output::{self, Format, FormatArgs, Row, Time, View};
use crate::exit::print;

/// What is said while there is nothing to show.
const NO_EMBEDDING: &str = "no embedding yet: it is fitted when three landmarks have measured each other; \
                            `landfall embedding fit` says what is missing";
/// How distances follow from coordinates.
const FORMULA: &str = "rtt_ms(x, y) = sqrt(sum((x.position_ms - y.position_ms)^2)) + x.height_ms + y.height_ms";

#[derive(Debug, Subcommand)]
pub(super) enum EmbeddingCommand {
    /// Show the newest embedding: its landmarks, its errors, and who does not fit in
    Show {
        #[command(flatten)]
        format: FormatArgs<ResidualRow>,
    },
    /// Have a new embedding fitted now, and wait for it
    Fit {
        /// How long to wait, seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=300))]
        wait: u32,
        #[command(flatten)]
        format: FormatArgs<EpochRow>,
    },
    /// List the embeddings, newest first: why each was fitted, and how far it moved the agents
    History {
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        #[command(flatten)]
        format: FormatArgs<EpochRow>,
    },
    /// Print every agent's coordinate: enough to predict distances elsewhere
    #[command(after_help = "\
The predicted round trip of two hosts x and y, milliseconds, over all dimensions d:
  sqrt(sum of (x_d - y_d)^2) + height of x + height of y
Coordinates of different epochs never meet.")]
    Export {
        /// How to print
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
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let client = Client::connect(connection).await?;
        let mut embeddings = client.embeddings();
        let refusal = |status| client.refusal(&status);
        match self {
            Self::Show { format: FormatArgs { format, wide } } => show(
                embeddings.show_embedding(ShowEmbeddingRequest {}).await.map_err(refusal)?.into_inner(),
                format,
                &wide.view(),
            ),
            Self::Fit { wait, format: FormatArgs { format, wide } } => {
                let wait = Some(prost_types::Duration { seconds: i64::from(wait), nanos: 0 });
                let answer = embeddings.fit_embedding(FitEmbeddingRequest { wait }).await.map_err(refusal)?;
                match answer.into_inner().epoch {
                    Some(epoch) => output::print_rows(&[EpochRow::from(epoch)], format, &wide.view()),
                    None => Err(anyhow::anyhow!(
                        "no new embedding within the wait; the request stands: `landfall embedding history` shows when it is fitted"
                    )),
                }
            }
            Self::History { limit, format: FormatArgs { format, wide } } => {
                let answer = embeddings.list_epochs(ListEpochsRequest { limit }).await.map_err(refusal)?;
                let rows: Vec<EpochRow> = answer.into_inner().epochs.into_iter().map(EpochRow::from).collect();
                if rows.is_empty() && format == Format::Table {
                    return print(&format!("{NO_EMBEDDING}\n"));
                }
                output::print_rows(&rows, format, &wide.view())
            }
            Self::Export { format } => {
                let answer = embeddings.export_embedding(ExportEmbeddingRequest {}).await.map_err(refusal)?;
                export(answer.into_inner(), format)
            }
        }
    }
}

/// One epoch, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct EpochRow {
    epoch: i64,
    fitted_at: Option<Time>,
    reason: String,
    agents: u32,
    landmarks: u32,
    dimensions: u32,
    fit_error: f64,
    mesh_error: Option<f64>,
    median_move_ms: Option<f64>,
}

impl From<Epoch> for EpochRow {
    fn from(epoch: Epoch) -> Self {
        Self {
            epoch: epoch.epoch,
            fitted_at: output::time(epoch.fitted_at.as_ref()),
            reason: epoch.reason,
            agents: epoch.agents,
            landmarks: epoch.landmarks,
            dimensions: epoch.dimensions,
            fit_error: epoch.fit_error,
            mesh_error: epoch.mesh_error,
            median_move_ms: output::millis(epoch.median_move.as_ref()),
        }
    }
}

impl Row for EpochRow {
    const COLUMNS: &'static [&'static str] =
        &[">epoch", "fitted", "~reason", ">agents", ">landmarks", ">dims", ">fit error", ">mesh error", ">moved ms"];

    fn cells(&self, view: &View) -> Vec<String> {
        vec![
            self.epoch.to_string(),
            view.when(self.fitted_at),
            self.reason.clone(),
            output::number(self.agents.into()),
            self.landmarks.to_string(),
            self.dimensions.to_string(),
            format!("{:.3}", self.fit_error),
            error_cell(self.mesh_error),
            output::millis_cell(self.median_move_ms),
        ]
    }
}

fn error_cell(error: Option<f64>) -> String {
    error.map_or_else(|| "-".to_owned(), |error| format!("{error:.3}"))
}

/// One pair that is explained badly, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct ResidualRow {
    from: String,
    to: String,
    measured_ms: Option<f64>,
    predicted_ms: Option<f64>,
}

impl From<Residual> for ResidualRow {
    fn from(residual: Residual) -> Self {
        Self {
            from: residual.from,
            to: residual.to,
            measured_ms: output::millis(residual.measured.as_ref()),
            predicted_ms: output::millis(residual.predicted.as_ref()),
        }
    }
}

impl Row for ResidualRow {
    const COLUMNS: &'static [&'static str] = &["from", "to", ">measured ms", ">predicted ms"];

    fn cells(&self, _: &View) -> Vec<String> {
        let (measured, predicted) = (output::millis_cell(self.measured_ms), output::millis_cell(self.predicted_ms));
        vec![self.from.clone(), self.to.clone(), measured, predicted]
    }
}

/// One agent's error, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct AgentErrorRow {
    agent: String,
    median_error: f64,
    distances: u32,
}

impl From<AgentError> for AgentErrorRow {
    fn from(error: AgentError) -> Self {
        Self { agent: error.agent, median_error: error.median_error, distances: error.distances }
    }
}

impl Row for AgentErrorRow {
    const COLUMNS: &'static [&'static str] = &["agent", ">median error", ">distances"];

    fn cells(&self, _: &View) -> Vec<String> {
        vec![self.agent.clone(), format!("{:.3}", self.median_error), output::number(self.distances.into())]
    }
}

/// The newest embedding, as printed.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    #[serde(flatten)]
    epoch: EpochRow,
    mesh_error_now: Option<f64>,
    landmark_names: Vec<String>,
    landmarks_chosen: bool,
    worst: Vec<ResidualRow>,
    suspects: Vec<AgentErrorRow>,
    low_confidence: Vec<AgentErrorRow>,
}

fn show(answer: ShowEmbeddingResponse, format: Format, view: &View) -> anyhow::Result<()> {
    if answer.epoch.is_none() {
        return match format {
            Format::Table => print(&format!("{NO_EMBEDDING}\n")),
            Format::Json => print("null\n"),
            Format::Csv => output::print_rows::<ResidualRow>(&[], format, view),
        };
    }
    let shown = Shown::of(answer);
    match format {
        Format::Table => print(&shown.text(view)),
        Format::Json => output::print_json(&shown),
        Format::Csv => output::print_rows(&shown.worst, format, view),
    }
}

impl Shown {
    pub(super) fn of(answer: ShowEmbeddingResponse) -> Self {
        Self {
            epoch: answer.epoch.unwrap_or_default().into(),
            mesh_error_now: answer.mesh_error_now,
            landmark_names: answer.landmarks,
            landmarks_chosen: answer.landmarks_chosen,
            worst: answer.worst.into_iter().map(Into::into).collect(),
            suspects: answer.suspects.into_iter().map(Into::into).collect(),
            low_confidence: answer.low_confidence.into_iter().map(Into::into).collect(),
        }
    }

    fn text(&self, view: &View) -> String {
        let EpochRow { epoch, fitted_at, reason, agents, dimensions, fit_error, mesh_error, .. } = &self.epoch;
        let chosen = match self.landmarks_chosen {
            true => "",
            false => " (none is chosen: every agent of a fleet of up to nine is one)",
        };
        let mut text = format!(
            "embedding {epoch}, fitted {} ({reason}): {agents} agents, {dimensions} dimensions\n\
             landmarks: {}{chosen}\n\
             relative error between landmarks {fit_error:.3}; median error of all pairs {} when fitted, {} now\n",
            view.when(*fitted_at),
            self.landmark_names.join(", "),
            error_cell(*mesh_error),
            error_cell(self.mesh_error_now),
        );
        section(&mut text, "pairs explained worst", &self.worst, view);
        section(&mut text, "suspects: agents whose error stands out", &self.suspects, view);
        section(
            &mut text,
            "low confidence: agents with too few distances to be sure where they are",
            &self.low_confidence,
            view,
        );
        view.fold(&text)
    }
}

/// Adds a titled table, unless it is empty.
fn section<R: Row>(text: &mut String, title: &str, rows: &[R], view: &View) {
    if !rows.is_empty() {
        write!(text, "\n{title}\n{}", output::table(rows, view)).expect("a String takes every write");
    }
}

/// The coordinates, as printed.
#[derive(Debug, Serialize)]
pub(super) struct Export {
    epoch: i64,
    fitted_at: Option<Time>,
    dimensions: u32,
    formula: &'static str,
    agents: Vec<ExportedAgent>,
}

/// One agent's coordinate, as printed.
#[derive(Debug, Serialize)]
struct ExportedAgent {
    agent: String,
    city: String,
    carrier: String,
    landmark: bool,
    position_ms: Vec<f64>,
    height_ms: f64,
    fit_error: f64,
}

impl From<PlacedAgent> for ExportedAgent {
    fn from(placed: PlacedAgent) -> Self {
        let PlacedAgent { agent, city, carrier, landmark, position_ms, height_ms, fit_error } = placed;
        Self { agent, city, carrier, landmark, position_ms, height_ms, fit_error }
    }
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
    pub(super) fn of(answer: ExportEmbeddingResponse) -> Self {
        let epoch = answer.epoch.unwrap_or_default();
        Self {
            epoch: epoch.epoch,
            fitted_at: output::time(epoch.fitted_at.as_ref()),
            dimensions: epoch.dimensions,
            formula: FORMULA,
            agents: answer.agents.into_iter().map(Into::into).collect(),
        }
    }

    /// One row an agent; the position has a column a dimension, so the header depends on the embedding.
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
        Ok(String::from_utf8(writer.into_inner().map_err(csv::IntoInnerError::into_error)?)?)
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
            agents: vec![placed("a", true, vec![3.0, -4.25]).into(), placed("b,c", false, vec![0.0, 0.5]).into()],
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
    fn what_is_shown_has_stable_names_and_leaves_empty_tables_out() {
        let epoch = Epoch { epoch: 3, reason: "drift 12 %, 7 % when it was fitted".to_owned(), ..Epoch::default() };
        let shown = Shown {
            epoch: epoch.into(),
            mesh_error_now: Some(0.0712),
            landmark_names: vec!["a".to_owned(), "b".to_owned()],
            landmarks_chosen: false,
            worst: vec![ResidualRow { from: "a".to_owned(), to: "b".to_owned(), ..ResidualRow::default() }],
            suspects: Vec::new(),
            low_confidence: Vec::new(),
        };
        let text = shown.text(&View::plain());
        assert!(text.contains("embedding 3") && text.contains("drift 12 %") && text.contains("0.071 now"), "{text}");
        assert!(text.contains("pairs explained worst") && !text.contains("suspects"), "{text}");
        assert!(text.contains("landmarks: a, b (none is chosen: every agent"), "{text}");
        let chosen = Shown { landmarks_chosen: true, ..shown };
        assert!(chosen.text(&View::plain()).contains("landmarks: a, b\n"));
        let json = serde_json::to_value(&chosen).unwrap();
        for name in
            ["epoch", "reason", "fit_error", "mesh_error_now", "landmark_names", "worst", "suspects", "low_confidence"]
        {
            assert!(json.get(name).is_some(), "{name}");
        }
    }
}
