//! `landfall explain`: why a site has the agent it has, or none.

use std::fmt::Write;

use clap::Args;
use landfall_proto::json;
use landfall_proto::v1::{
    ExcludedAgents, ExplainRequest, ExplainResponse, ExplainedCandidate, ExplainedChoice, ExplainedTask, GlobePosition,
    Wait,
};
use prost_types::{Duration, Timestamp};
use serde::Serialize;

use super::ConnectionArgs;
use super::agents::level_cell;
use super::client::Client;
use super::output::{self, Column, Row, ShowFormat, ShowFormatArgs, View};
use super::sites::globe_cell;
use crate::exit::print;
use crate::model::Why;

/// Excluded agents that are named to people, of each constraint.
const NAMED_AT_MOST: usize = 10;

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// A host, or scheme://host:port
    #[arg(value_name = "HOST")]
    site: String,
    /// Of this batch alone
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    /// This choice alone, by its number
    #[arg(long, value_name = "ASSIGNMENT-ID", value_parser = clap::value_parser!(i64).range(1..))]
    at: Option<i64>,
    #[command(flatten)]
    format: ShowFormatArgs<CandidateRow>,
}

impl ExplainArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { site, batch, at, format: ShowFormatArgs { format, wide } } = self;
        let client = Client::connect(connection).await?;
        let request = ExplainRequest { site, batch: batch.unwrap_or_default(), assignment_id: at };
        let explained = Explained::from(client.answer(client.sites().explain(request).await)?);
        match format {
            ShowFormat::Table => print(&explained.text(&wide.view())?),
            ShowFormat::Json => output::print_json(&explained),
        }
    }
}

/// Why a site has its agents, as printed.
#[derive(Debug, Serialize)]
pub(super) struct Explained {
    site_id: i64,
    site: String,
    position: Option<GlobePosition>,
    tasks: Vec<Task>,
}

#[derive(Debug, Serialize)]
struct Task {
    batch: String,
    round: u32,
    state: String,
    reason: String,
    waits: String,
    /// What it waits for in a word; empty where it has an agent or has ended.
    #[serde(rename = "wait_cause", serialize_with = "json::wait")]
    wait: Option<Wait>,
    choices: Vec<Choice>,
}

#[derive(Debug, Serialize)]
struct Choice {
    assignment_id: i64,
    #[serde(serialize_with = "json::time")]
    chosen_at: Option<Timestamp>,
    newest: bool,
    agent: String,
    strategy: String,
    /// A text: it has more digits than a number of JSON may be trusted with.
    seed: String,
    because: String,
    candidates: Vec<CandidateRow>,
    available: Option<u32>,
    excluded: Vec<ExcludedAgents>,
    fallback: String,
    note: String,
    why: Option<Why>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct CandidateRow {
    rank: u32,
    agent: String,
    #[serde(rename = "predicted_ms", serialize_with = "json::millis")]
    predicted: Option<Duration>,
    #[serde(rename = "measured_ms", serialize_with = "json::millis")]
    measured: Option<Duration>,
    load_level: Option<i64>,
    chosen: bool,
}

impl From<ExplainResponse> for Explained {
    fn from(explained: ExplainResponse) -> Self {
        Self {
            site_id: explained.site_id,
            site: explained.site,
            position: explained.position,
            tasks: explained.tasks.into_iter().map(Task::from).collect(),
        }
    }
}

impl From<ExplainedTask> for Task {
    fn from(task: ExplainedTask) -> Self {
        let ExplainedTask { batch, round, state, reason, waits, choices, wait } = task;
        let choices = choices.into_iter().map(Choice::from).collect();
        Self { batch, round, state, reason, waits, wait, choices }
    }
}

impl From<ExplainedChoice> for Choice {
    fn from(choice: ExplainedChoice) -> Self {
        let candidate = |(rank, one): (u32, ExplainedCandidate)| CandidateRow {
            rank,
            predicted: one.predicted,
            measured: one.measured,
            load_level: one.load_level,
            chosen: one.agent == choice.agent,
            agent: one.agent,
        };
        let candidates = (1..).zip(choice.candidates).map(candidate).collect();
        Self {
            candidates,
            assignment_id: choice.assignment_id,
            chosen_at: choice.chosen_at,
            newest: choice.newest,
            agent: choice.agent,
            strategy: choice.strategy,
            seed: choice.seed.to_string(),
            because: choice.because,
            available: choice.available,
            excluded: choice.excluded,
            fallback: choice.fallback,
            note: choice.note,
            why: choice.why.and_then(|why| Why::try_from(why).ok()),
        }
    }
}

impl Row for CandidateRow {
    const COLUMNS: &'static [Column<Self>] = &[
        (">rank", |row, _| row.rank.to_string()),
        ("candidate", |row, _| row.agent.clone()),
        (">predicted ms", |row, _| output::millis_cell(row.predicted)),
        (">measured ms", |row, _| output::millis_cell(row.measured)),
        (">load level", |row, _| level_cell(row.load_level)),
        ("chosen", |row, _| output::yes_cell(row.chosen)),
    ];
}

impl Explained {
    pub(super) fn text(&self, view: &View) -> anyhow::Result<String> {
        let mut text = String::new();
        writeln!(text, "{} (site {}), position: {}", self.site, self.site_id, globe_cell(self.position.as_ref()))?;
        for task in &self.tasks {
            task.write(&mut text, view)?;
        }
        Ok(view.fold(&text))
    }
}

impl Task {
    fn write(&self, text: &mut String, view: &View) -> anyhow::Result<()> {
        let ended = if self.waits.is_empty() && !self.reason.is_empty() {
            format!(" ({})", self.reason)
        } else {
            String::new()
        };
        writeln!(text, "\nbatch {} round {}: {}{ended}", self.batch, self.round, self.state)?;
        if !self.waits.is_empty() {
            writeln!(text, "{}", self.waits)?;
        }
        if self.waits.is_empty() && self.choices.is_empty() {
            writeln!(text, "no agent was ever chosen")?;
        }
        for choice in &self.choices {
            choice.write(text, view)?;
        }
        Ok(())
    }
}

impl Choice {
    fn write(&self, text: &mut String, view: &View) -> anyhow::Result<()> {
        let Self { assignment_id, agent, strategy, seed, .. } = self;
        let at = view.when(self.chosen_at);
        writeln!(text, "\nchoice {assignment_id}, {at}: {agent} by {strategy}, seed {seed}")?;
        writeln!(text, "{agent} was {}", self.because)?;
        if !self.candidates.is_empty() {
            text.push_str(&output::table(&self.candidates, view));
        }
        for ExcludedAgents { why, agents, .. } in &self.excluded {
            let named = agents.iter().take(NAMED_AT_MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = agents.len().saturating_sub(NAMED_AT_MOST);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            writeln!(text, "excluded: {named}{more}: each {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_reads_as_sentences_with_its_candidates() {
        let candidate =
            |agent: &str, load_level| ExplainedCandidate { agent: agent.into(), load_level, ..Default::default() };
        let choice = ExplainedChoice {
            assignment_id: 7,
            agent: "b".into(),
            strategy: "gnp-top3".into(),
            seed: u64::MAX,
            because: "chosen because it is near".into(),
            candidates: vec![candidate("a", Some(3)), candidate("b", Some(-2))],
            excluded: vec![ExcludedAgents {
                constraint: "country".into(),
                why: "is not in CN".into(),
                agents: (0..12).map(|number| format!("x{number}")).collect(),
            }],
            ..ExplainedChoice::default()
        };
        let task = ExplainedTask {
            batch: "autumn".into(),
            round: 1,
            state: "done".into(),
            choices: vec![choice],
            ..Default::default()
        };
        let waiting = ExplainedTask {
            batch: "winter".into(),
            round: 2,
            state: "located".into(),
            waits: "no agent yet: x".into(),
            ..Default::default()
        };
        let response = ExplainResponse { site: "a.cn".into(), tasks: vec![waiting, task], ..Default::default() };
        let text = Explained::from(response).text(&View::plain()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "a.cn (site 0), position: unknown");
        assert_eq!(lines[2..4], ["batch winter round 2: located", "no agent yet: x"]);
        assert_eq!(lines[5], "batch autumn round 1: done");
        assert_eq!(lines[7], "choice 7, -: b by gnp-top3, seed 18446744073709551615");
        assert_eq!(lines[8], "b was chosen because it is near");
        assert!(lines[11].contains('b') && lines[11].contains("-2") && lines[11].ends_with("yes"), "{text}");
        assert_eq!(lines[12], "excluded: x0, x1, x2, x3, x4, x5, x6, x7, x8, x9 and 2 more: each is not in CN");
    }
}
