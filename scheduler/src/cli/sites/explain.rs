//! `landfall explain`: explains why a site has its agent, or why it has none.

use std::fmt::Write;

use clap::Args;
use landfall_proto::v1::{
    ExcludedAgents, ExplainRequest, ExplainResponse, ExplainedCandidate, ExplainedChoice, ExplainedTask,
};

use super::show::globe_cell;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::{self, Column, Row, ShowFormatArgs, View, level_cell};

/// Maximum number of agents named for each constraint that excludes them.
const NAMED_AT_MOST: usize = 10;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall explain www.example.cn
  landfall explain www.example.cn --batch autumn --at 1017 --format json")]
pub(in crate::cli) struct ExplainArgs {
    /// A host, or scheme://host:port
    #[arg(value_name = "HOST")]
    site: String,
    /// Only the choices of this batch
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    /// Only the choice with this number
    #[arg(long, value_name = "ASSIGNMENT-ID", value_parser = clap::value_parser!(i64).range(1..))]
    at: Option<i64>,
    #[command(flatten)]
    format: ShowFormatArgs<CandidateRow>,
}

impl ExplainArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let client = Client::connect(connection).await?;
        let request = ExplainRequest { site: self.site, batch: self.batch.unwrap_or_default(), assignment_id: self.at };
        self.format.print(&client.answer(client.sites().explain(request).await)?, text)
    }
}

/// A candidate with its rank, as a row of the table.
#[derive(Debug, Default)]
pub(in crate::cli) struct CandidateRow {
    rank: u32,
    chosen: bool,
    candidate: ExplainedCandidate,
}

impl Row for CandidateRow {
    const COLUMNS: &'static [Column<Self>] = &[
        (">rank", |row, _| row.rank.to_string()),
        ("candidate", |row, _| row.candidate.agent.clone()),
        (">predicted ms", |row, _| output::millis_cell(row.candidate.predicted)),
        (">measured ms", |row, _| output::millis_cell(row.candidate.measured)),
        (">load level", |row, _| level_cell(row.candidate.load_level)),
        ("chosen", |row, _| output::yes_cell(row.chosen)),
    ];
}

pub(in crate::cli) fn text(explained: &ExplainResponse, view: &View) -> anyhow::Result<String> {
    let ExplainResponse { site, site_id, position, tasks } = explained;
    let mut text = format!("{site} (site {site_id}), position: {}\n", globe_cell(position.as_ref()));
    for task in tasks {
        write_task(task, &mut text, view)?;
    }
    Ok(view.fold(&text))
}

fn write_task(task: &ExplainedTask, text: &mut String, view: &View) -> std::fmt::Result {
    let ExplainedTask { batch, round, state, reason, waits, choices, .. } = task;
    let ended = if waits.is_empty() && !reason.is_empty() { format!(" ({reason})") } else { String::new() };
    writeln!(text, "\nbatch {batch} round {round}: {state}{ended}")?;
    if !waits.is_empty() {
        writeln!(text, "{waits}")?;
    } else if choices.is_empty() {
        writeln!(text, "no agent has been chosen")?;
    }
    choices.iter().try_for_each(|choice| write_choice(choice, text, view))
}

fn write_choice(choice: &ExplainedChoice, text: &mut String, view: &View) -> std::fmt::Result {
    let ExplainedChoice { assignment_id, chosen_at, agent, strategy, seed, because, .. } = choice;
    let at = view.when(*chosen_at);
    writeln!(text, "\nchoice {assignment_id}, {at}: {agent} by {strategy}, seed {seed}\n{agent} was {because}")?;
    let ranked = (1..).zip(choice.candidates.clone());
    let ranked = ranked.map(|(rank, one)| CandidateRow { rank, chosen: one.agent == *agent, candidate: one });
    let candidates: Vec<CandidateRow> = ranked.collect();
    if !candidates.is_empty() {
        text.push_str(&output::table(&candidates, view));
    }
    for ExcludedAgents { why, agents, .. } in &choice.excluded {
        let named = agents.iter().take(NAMED_AT_MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = agents.len().saturating_sub(NAMED_AT_MOST);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        writeln!(text, "excluded: {named}{more}: each {why}")?;
    }
    Ok(())
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
        let text = self::text(&response, &View::plain()).unwrap();
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
