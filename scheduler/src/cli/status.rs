//! `landfall status`: shows the state of the whole system, and what needs attention.

use std::cell::Cell;
use std::fmt::Write;

use clap::Args;
use landfall_proto::json::Word;
use landfall_proto::v1::{
    Attention, BatchStatus, DatabaseStatus, DiskSpace, FleetStatus, LandmarksStatus, MapStatus, SchedulerStatus,
    ShowStatusRequest, ShowStatusResponse,
};

use super::ConnectionArgs;
use super::batches::wait_and_progress;
use super::connection::Client;
use super::output::{self, Column, Row, ShowFormatArgs, View, bytes_cell, count_cell, counted, number};
use super::watch_flag::WatchFlag;
use crate::app::exit::{self, Code};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall status --watch
  landfall status --check > /dev/null || mail -s 'landfall needs attention' operator@example.org < /dev/null
  landfall status -o json | jq '.attention[].command'

Each finding below `attention` is followed by the command that helps. A finding with `!` is urgent: work has stopped, or is
about to.")]
pub(super) struct StatusArgs {
    /// Maximum number of batches to show, the newest first
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Exit with code 5 if something needs attention
    #[arg(long, conflicts_with = "watch")]
    check: bool,
    #[command(flatten)]
    format: ShowFormatArgs<BatchStatus>,
    #[command(flatten)]
    watch: WatchFlag,
}

impl StatusArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { limit, check, format, watch } = self;
        let found = Cell::new(0);
        let ask = async |client: &Client| {
            let request = ShowStatusRequest { batches: limit };
            client.answer(client.status().show_status(request).await)
        };
        let shown = |status: &ShowStatusResponse, view: &View| {
            found.set(status.attention.len());
            format.text(status, text, view)
        };
        watch.print(connection, &format, ask, shown).await?;
        match found.get() {
            found if found > 0 && check => Err(exit::ended(Code::Attention, format!("{} attention", needs(found)))),
            _ => Ok(()),
        }
    }
}

fn needs(found: usize) -> String {
    if found == 1 { "1 thing needs".to_owned() } else { format!("{found} things need") }
}

impl Row for BatchStatus {
    const COLUMNS: &'static [Column<Self>] = &[
        ("batch", |row, _| row.name.clone()),
        ("+strategy", |row, _| row.strategy.clone()),
        (">sites", |row, _| number(row.sites)),
        (">ended", |row, _| share(row.ended, row.sites)),
        (">failed", |row, _| count_cell(row.failed)),
        (">crawling", |row, _| count_cell(row.crawling)),
        (">sites/min", |row, _| output::float_cell(row.sites_per_minute, 1)),
        (">MB/min", |row, _| output::float_cell(row.megabytes_per_minute, 1)),
        ("~left", |row, view| if view.timeless { String::new() } else { left(row) }),
    ];
}

fn left(batch: &BatchStatus) -> String {
    batch.estimate.as_ref().map_or_else(|| "being estimated".to_owned(), wait_and_progress::left_cell)
}

/// Formats a share in per cent, rounded down, so that 100 % means all.
fn share(part: u64, whole: u64) -> String {
    format!("{} %", part.saturating_mul(100).checked_div(whole).unwrap_or(100))
}

pub(super) fn text(status: &ShowStatusResponse, view: &View) -> anyhow::Result<String> {
    let mut lines = String::new();
    for scheduler in &status.schedulers {
        writeln!(lines, "scheduler  {}", scheduler_line(scheduler, status, view))?;
    }
    writeln!(lines, "database   {}", database_line(status.database.as_ref(), view))?;
    writeln!(lines, "agents     {}", fleet_line(status.fleet.as_ref()))?;
    writeln!(lines, "landmarks  {}", landmarks_line(status.landmarks.as_ref()))?;
    writeln!(lines, "map        {}", map_line(status.map.as_ref(), view))?;
    let mut text = view.fold(&lines);
    if status.batches.is_empty() {
        text.push_str("batches    no site waits or is being crawled\n");
    } else {
        text.push('\n');
        text.push_str(&output::table(&status.batches, view));
        text.push_str(&output::more(status.more_batches));
    }
    text.push('\n');
    text.push_str(&view.fold(&attention_text(&status.attention)?));
    Ok(text)
}

/// Describes a scheduler. If there are several schedulers, also states whether this scheduler
/// answered, and which roles it leads.
pub(crate) fn scheduler_line(scheduler: &SchedulerStatus, status: &ShowStatusResponse, view: &View) -> String {
    let SchedulerStatus { url, version, started_at, running, roles, disk } = scheduler;
    let (several, answers) = (status.schedulers.len() > 1, *url == status.answering_url);
    let read_only = status.database.as_ref().is_some_and(|database| database.read_only);
    if !running {
        let what = if read_only { "unknown while the database is read-only" } else { "stopped without notice" };
        return format!("{url}  {version}, {what}");
    }
    let mut parts = vec![format!("{url}  {version}, started {}", view.when(*started_at))];
    if several && answers {
        parts.push("answers".to_owned());
    }
    if several && !roles.is_empty() {
        parts.push(format!("has the roles {}", roles.join(", ")));
    }
    // Free space changes with every answer, so it is left out if only changed answers are
    // printed.
    parts.extend(disk.as_ref().filter(|_| !view.timeless).map(|DiskSpace { free_bytes, size_bytes }| {
        format!("disk {} of {} free", bytes_cell(*free_bytes), bytes_cell(*size_bytes))
    }));
    parts.join(", ")
}

pub(crate) fn database_line(database: Option<&DatabaseStatus>, view: &View) -> String {
    let Some(DatabaseStatus { version, size_bytes, read_only }) = database else { return "-".to_owned() };
    let mut line = format!("PostgreSQL {version}");
    if !view.timeless {
        line += &format!(", {}", bytes_cell(*size_bytes));
    }
    if *read_only {
        line += ", read-only";
    }
    line
}

/// Describes the number of agents in each state, and the use of their slots.
pub(crate) fn fleet_line(fleet: Option<&FleetStatus>) -> String {
    let Some(FleetStatus { agents, slots, leases, open_enrolments }) = fleet else { return "-".to_owned() };
    let states: Vec<String> = agents
        .iter()
        .map(|count| format!("{} {}", count.agents, count.service().word_or_unknown().replace('-', " ")))
        .collect();
    let mut line = if states.is_empty() { "none".to_owned() } else { states.join(", ") };
    if *slots > 0 {
        line += &format!("; {} of {} used", number(*leases), counted(*slots, "slot"));
    }
    if *open_enrolments > 0 {
        line += &format!("; {} open", counted(*open_enrolments, "token"));
    }
    line
}

pub(crate) fn landmarks_line(landmarks: Option<&LandmarksStatus>) -> String {
    match landmarks {
        None | Some(LandmarksStatus { landmarks: 0, .. }) => "none chosen: every agent measures each site".to_owned(),
        Some(LandmarksStatus { landmarks, connected, by_hand }) => {
            let by = match by_hand {
                0 => "elected".to_owned(),
                all if all == landmarks => "set by hand".to_owned(),
                some => format!("{some} set by hand"),
            };
            format!("{connected} of {landmarks} connected, {by}")
        }
    }
}

pub(crate) fn map_line(map: Option<&MapStatus>, view: &View) -> String {
    let Some(MapStatus { epoch, fitted_at, error, agents, landmarks, dimensions }) = map else {
        return "none yet: it is fitted when three agents or more have measured each other".to_owned();
    };
    // If |ln(predicted / measured)| = e, the prediction is off by the factor exp(e).
    let error = error.map(|error| format!(", median error {:.0} %", error.exp_m1() * 100.0)).unwrap_or_default();
    format!(
        "epoch {epoch}, fitted {}{error}; {} from {} in {}",
        view.when(*fitted_at),
        counted((*agents).into(), "agent"),
        counted((*landmarks).into(), "landmark"),
        counted((*dimensions).into(), "dimension"),
    )
}

fn attention_text(attention: &[Attention]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for (index, found) in attention.iter().enumerate() {
        let head = if index == 0 { "attention" } else { "" };
        let mark = if found.urgent { "!" } else { "-" };
        writeln!(text, "{head:<9}  {mark} {}\n{:<13}{}", found.message, "", found.command)?;
    }
    if attention.is_empty() {
        text.push_str("attention  nothing needs attention\n");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::{AgentCount, Estimate, ServiceState};
    use prost_types::{Duration, Timestamp};

    use super::*;

    fn status() -> ShowStatusResponse {
        let at = Some(Timestamp { seconds: -7_200, nanos: 0 });
        let count = |service: ServiceState, agents| AgentCount { service: service.into(), agents };
        ShowStatusResponse {
            answering_url: "http://127.0.0.1:7171".to_owned(),
            schedulers: vec![SchedulerStatus {
                url: "http://127.0.0.1:7171".to_owned(),
                version: "0.1.0".to_owned(),
                started_at: at,
                running: true,
                roles: ["fit", "plan", "reap"].map(str::to_owned).to_vec(),
                disk: Some(DiskSpace { free_bytes: 56_000_000_000, size_bytes: 252_000_000_000 }),
            }],
            database: Some(DatabaseStatus { version: "15.18".to_owned(), size_bytes: 1_200_000_000, read_only: false }),
            fleet: Some(FleetStatus {
                agents: vec![count(ServiceState::Ready, 28), count(ServiceState::NeverConnected, 1)],
                slots: 224,
                leases: 200,
                open_enrolments: 1,
            }),
            landmarks: Some(LandmarksStatus { landmarks: 9, connected: 8, by_hand: 0 }),
            map: Some(MapStatus {
                epoch: 17,
                fitted_at: at,
                error: Some(0.04),
                agents: 28,
                landmarks: 9,
                dimensions: 8,
            }),
            batches: vec![BatchStatus {
                name: "autumn".to_owned(),
                strategy: "gnp-top3".to_owned(),
                sites: 1_000_000,
                ended: 999_999,
                failed: 12,
                crawling: 1,
                sites_per_minute: Some(1204.25),
                estimate: Some(Estimate {
                    left: Some(Duration { seconds: 12, nanos: 0 }),
                    sites: 1,
                    ..Estimate::default()
                }),
                ..BatchStatus::default()
            }],
            more_batches: 0,
            attention: vec![
                Attention {
                    urgent: true,
                    message: "no contact URL is set".to_owned(),
                    command: "landfall contact set URL".to_owned(),
                    ..Attention::default()
                },
                Attention {
                    message: "tokyo-iij is not connected".to_owned(),
                    command: "landfall agents show tokyo-iij".to_owned(),
                    ..Attention::default()
                },
            ],
            ..ShowStatusResponse::default()
        }
    }

    #[test]
    fn one_screen_says_how_everything_stands() {
        let text = text(&status(), &View::plain()).unwrap();
        let lines = "\
scheduler  http://127.0.0.1:7171  0.1.0, started 2 h ago, disk 56.0 GB of 252.0 GB free
database   PostgreSQL 15.18, 1.2 GB
agents     28 ready, 1 never connected; 200 of 224 slots used; 1 token open
landmarks  8 of 9 connected, elected
map        epoch 17, fitted 2 h ago, median error 4 %; 28 agents from 9 landmarks in 8 dimensions
";
        assert!(text.starts_with(lines), "{text}");
        let attention = "
attention  ! no contact URL is set
             landfall contact set URL
           - tokyo-iij is not connected
             landfall agents show tokyo-iij
";
        assert!(text.ends_with(attention), "{text}");
        let row = text.lines().find(|line| line.starts_with("autumn")).unwrap();
        assert!(row.contains("1,000,000   99 %      12         1     1204.2       -  about 12s"), "{row}");
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    #[test]
    fn an_empty_system_says_what_is_missing() {
        let text = text(&ShowStatusResponse::default(), &View::plain()).unwrap();
        for said in
            ["agents     -", "map        none yet", "batches    no site waits", "attention  nothing needs attention"]
        {
            assert!(text.contains(said), "{said}: {text}");
        }
        let lost = SchedulerStatus { url: "u".to_owned(), version: "0.1.0".to_owned(), ..SchedulerStatus::default() };
        let mut status = status();
        status.answering_url.clear();
        assert_eq!(scheduler_line(&lost, &status, &View::plain()), "u  0.1.0, stopped without notice");
        status.database.as_mut().unwrap().read_only = true;
        let unknown = "u  0.1.0, unknown while the database is read-only";
        assert_eq!(scheduler_line(&lost, &status, &View::plain()), unknown);
        assert!(super::text(&status, &View::plain()).unwrap().contains("PostgreSQL 15.18, 1.2 GB, read-only"));
    }
}
