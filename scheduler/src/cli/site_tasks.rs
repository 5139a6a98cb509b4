//! A site's tasks, as `sites show` prints them.

use landfall_proto::json;
use landfall_proto::v1::{Candidate, CrawlProgress, SiteTask, Wait};
use prost_types::Timestamp;
use serde::Serialize;

use super::output::{self, Column, Row, View, counted};
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
    #[serde(rename = "wait_cause", serialize_with = "json::wait")]
    wait: Option<Wait>,
    why: Option<Why>,
    pub(super) candidates: Vec<Candidate>,
    outcome: String,
    pages: u32,
    bytes: u64,
    refetched: u32,
    trapped: u32,
    progress: Option<CrawlProgress>,
    #[serde(serialize_with = "json::time")]
    recrawl_at: Option<Timestamp>,
}

/// How far a crawl is, for people.
fn sentence(progress: &CrawlProgress, view: &View) -> String {
    let told = view.when(progress.saved_at);
    let bytes = output::bytes_cell(progress.state_bytes);
    let mut text = format!(
        "{} so far; another agent would go on from {bytes} told {told}",
        counted(progress.pages.into(), "page")
    );
    if let Some(interval) = json::milliseconds(progress.interval) {
        text.push_str(&format!("; a request every {interval:.0} ms at most"));
    }
    if progress.recent_requests > 0 {
        text.push_str(&format!(
            "; {} of {} requests failed in the last minute",
            progress.recent_errors, progress.recent_requests
        ));
    }
    if progress.turned_away > 0 {
        let times =
            if progress.turned_away == 1 { "once".to_owned() } else { format!("{} times", progress.turned_away) };
        text.push_str(&format!("; turned away {times}"));
    }
    if progress.paused_until.is_some() {
        text.push_str(&format!("; goes on {}", view.when(progress.paused_until)));
    }
    if progress.failed_in_a_row > 0 {
        text.push_str(&format!("; {} failed in a row, 50 end the crawl", progress.failed_in_a_row));
    }
    if !progress.last_error.is_empty() {
        text.push_str(&format!("; the last error: {}", progress.last_error));
    }
    text
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
            wait: task.wait,
            why: task.why.and_then(|why| Why::try_from(why).ok()),
            candidates: task.candidates,
            outcome: task.outcome,
            pages: task.pages,
            bytes: task.bytes,
            refetched: task.refetched,
            trapped: task.trapped,
            progress: task.progress,
            recrawl_at: task.recrawl_at,
        }
    }
}

impl Row for Candidate {
    const COLUMNS: &'static [Column<Self>] = &[
        ("candidate", |row, _| row.agent.clone()),
        (">predicted ms", |row, _| output::millis_cell(row.predicted)),
        (">measured ms", |row, _| output::millis_cell(row.measured)),
    ];
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
            parts.push(sentence(progress, view));
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
