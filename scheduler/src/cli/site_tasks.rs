//! A site's tasks, as `sites show` prints them.

use landfall_proto::v1::{Candidate, SiteTask};
use serde::Serialize;

use super::output::{self, Row};

#[derive(Debug, Serialize)]
pub(super) struct TaskRow {
    batch: String,
    round: u32,
    state: String,
    reason: String,
    agent: String,
    strategy: String,
    note: String,
    pub(super) candidates: Vec<CandidateRow>,
    outcome: String,
    pages: u32,
    bytes: u64,
    refetched: u32,
    trapped: u32,
    progress: Option<ProgressRow>,
}

#[derive(Debug, Serialize)]
struct ProgressRow {
    pages: u32,
    state_bytes: u64,
    saved_at: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct CandidateRow {
    agent: String,
    predicted_ms: Option<f64>,
    measured_ms: Option<f64>,
}

impl From<SiteTask> for TaskRow {
    fn from(task: SiteTask) -> Self {
        Self {
            batch: task.batch,
            round: task.round,
            state: task.state,
            reason: task.reason,
            agent: task.agent,
            strategy: task.strategy,
            note: task.note,
            candidates: task.candidates.into_iter().map(CandidateRow::from).collect(),
            outcome: task.outcome,
            pages: task.pages,
            bytes: task.bytes,
            refetched: task.refetched,
            trapped: task.trapped,
            progress: task.progress.map(|progress| ProgressRow {
                pages: progress.pages,
                state_bytes: progress.state_bytes,
                saved_at: output::time(progress.saved_at.as_ref()),
            }),
        }
    }
}

impl From<Candidate> for CandidateRow {
    fn from(candidate: Candidate) -> Self {
        Self {
            agent: candidate.agent,
            predicted_ms: output::millis(candidate.predicted.as_ref()),
            measured_ms: output::millis(candidate.measured.as_ref()),
        }
    }
}

impl Row for CandidateRow {
    const COLUMNS: &'static [&'static str] = &["candidate", ">predicted ms", ">measured ms"];

    fn cells(&self) -> Vec<String> {
        vec![self.agent.clone(), output::millis_cell(self.predicted_ms), output::millis_cell(self.measured_ms)]
    }
}

impl TaskRow {
    /// One line for people.
    pub(super) fn sentence(&self) -> String {
        let mut parts = vec![format!("batch {} round {}: {}", self.batch, self.round, self.state)];
        if !self.outcome.is_empty() {
            parts.push(format!("{}, {} pages, {}", self.outcome, self.pages, output::bytes_cell(self.bytes)));
        }
        if self.refetched > 0 {
            parts.push(format!("{} pages fetched once more after it changed hands", self.refetched));
        }
        if self.trapped > 0 {
            parts.push(format!("{} links left out as traps", self.trapped));
        }
        if let Some(progress) = &self.progress {
            let told = progress.saved_at.as_deref().unwrap_or_default();
            let bytes = output::bytes_cell(progress.state_bytes);
            parts.push(format!(
                "{} pages so far; another agent would go on from {bytes} told at {told}",
                progress.pages
            ));
        }
        if !self.agent.is_empty() {
            parts.push(format!("agent {} by {}", self.agent, self.strategy));
        }
        if !self.note.is_empty() {
            parts.push(self.note.clone());
        }
        if !self.reason.is_empty() {
            parts.push(self.reason.clone());
        }
        parts.join("; ")
    }
}
