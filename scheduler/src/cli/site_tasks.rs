//! A site's tasks, as `sites show` prints them.

use landfall_proto::v1::{Candidate, CrawlProgress, SiteTask};
use serde::Serialize;

use super::output::{self, Row, Time, View, counted};
use super::tasks;
use crate::model::Why;

#[derive(Debug, Serialize)]
pub(super) struct TaskRow {
    batch: String,
    round: u32,
    state: String,
    reason: String,
    agent: String,
    strategy: String,
    note: String,
    /// What it waits for in a word; empty where it has an agent or has ended.
    wait_cause: String,
    why: Option<Why>,
    pub(super) candidates: Vec<CandidateRow>,
    outcome: String,
    pages: u32,
    bytes: u64,
    refetched: u32,
    trapped: u32,
    progress: Option<ProgressRow>,
    recrawl_at: Option<Time>,
}

#[derive(Debug, Serialize)]
struct ProgressRow {
    pages: u32,
    state_bytes: u64,
    saved_at: Option<Time>,
    interval_ms: Option<f64>,
    paused_until: Option<Time>,
    turned_away: u32,
    failed_in_a_row: u32,
    recent_requests: u32,
    recent_errors: u32,
    last_error: String,
}

impl ProgressRow {
    fn sentence(&self, view: &View) -> String {
        let told = view.when(self.saved_at);
        let bytes = output::bytes_cell(self.state_bytes);
        let mut text = format!(
            "{} so far; another agent would go on from {bytes} told {told}",
            counted(self.pages.into(), "page")
        );
        if let Some(interval) = self.interval_ms {
            text.push_str(&format!("; a request every {interval:.0} ms at most"));
        }
        if self.recent_requests > 0 {
            text.push_str(&format!(
                "; {} of {} requests failed in the last minute",
                self.recent_errors, self.recent_requests
            ));
        }
        if self.turned_away > 0 {
            let times = if self.turned_away == 1 { "once".to_owned() } else { format!("{} times", self.turned_away) };
            text.push_str(&format!("; turned away {times}"));
        }
        if self.paused_until.is_some() {
            text.push_str(&format!("; goes on {}", view.when(self.paused_until)));
        }
        if self.failed_in_a_row > 0 {
            text.push_str(&format!("; {} failed in a row, 50 end the crawl", self.failed_in_a_row));
        }
        if !self.last_error.is_empty() {
            text.push_str(&format!("; the last error: {}", self.last_error));
        }
        text
    }
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
            wait_cause: tasks::wait_word(task.wait.as_ref()),
            why: task.why.and_then(|why| Why::try_from(why).ok()),
            candidates: task.candidates.into_iter().map(CandidateRow::from).collect(),
            outcome: task.outcome,
            pages: task.pages,
            bytes: task.bytes,
            refetched: task.refetched,
            trapped: task.trapped,
            progress: task.progress.map(ProgressRow::from),
            recrawl_at: output::time(task.recrawl_at.as_ref()),
        }
    }
}

impl From<CrawlProgress> for ProgressRow {
    fn from(progress: CrawlProgress) -> Self {
        Self {
            pages: progress.pages,
            state_bytes: progress.state_bytes,
            saved_at: output::time(progress.saved_at.as_ref()),
            interval_ms: output::millis(progress.interval.as_ref()),
            paused_until: output::time(progress.paused_until.as_ref()),
            turned_away: progress.turned_away,
            failed_in_a_row: progress.failed_in_a_row,
            recent_requests: progress.recent_requests,
            recent_errors: progress.recent_errors,
            last_error: progress.last_error,
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

    fn cells(&self, _: &View) -> Vec<String> {
        vec![self.agent.clone(), output::millis_cell(self.predicted_ms), output::millis_cell(self.measured_ms)]
    }
}

impl TaskRow {
    /// One line for people.
    pub(super) fn sentence(&self, view: &View) -> String {
        let mut parts = vec![format!("batch {} round {}: {}", self.batch, self.round, self.state)];
        if !self.outcome.is_empty() {
            parts.push(format!("{}{}", self.outcome, output::fetched(self.pages.into(), self.bytes)));
        }
        if self.refetched > 0 {
            parts.push(format!("{} fetched once more after it changed hands", counted(self.refetched.into(), "page")));
        }
        if self.trapped > 0 {
            parts.push(format!("{} left out as traps", counted(self.trapped.into(), "link")));
        }
        if let Some(progress) = &self.progress {
            parts.push(progress.sentence(view));
        }
        if self.recrawl_at.is_some() {
            parts.push(format!("crawled again {}", view.when(self.recrawl_at)));
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
