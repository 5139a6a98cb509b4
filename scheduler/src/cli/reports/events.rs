//! `landfall events`: prints the log of all transitions, each as one line of text or one
//! JSON object.

use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::Args;
use clap::builder::PossibleValuesParser;
use landfall_proto::v1::{Event, EventsRequest};
use tonic::Status;

use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::connection::{self, Client};
use crate::cli::filters::{PlaceArgs, time, timestamp};
use crate::cli::output::formats::escape_json;
use crate::cli::output::{ShowFormatArgs, View};
use crate::store::reports::events::KINDS;

/// Maximum number of consecutive attempts to open a broken stream again, if no attempt receives an
/// event. With this limit, a scheduler has a minute to restart.
const REOPENED_AT_MOST: u32 = 60;
/// The pause before a broken stream is opened again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// Number of newest events requested after a stream broke. Events that were already printed
/// are skipped.
const ASKED_AGAIN: u32 = 10_000;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall events --follow
  landfall events --site www.example.cn --batch autumn
  landfall events --agent harbin-cernet --newest 1000 --format json")]
pub(in crate::cli) struct EventsArgs {
    /// Only events of this batch's sites
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    /// Only events of this site: a host, or scheme://host:port
    #[arg(long, value_name = "HOST")]
    site: Option<String>,
    /// Only events of this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Only events of this kind: all events of one thing (task), or one of them (task-done); may be
    /// repeated
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(KINDS))]
    kind: Vec<String>,
    #[command(flatten)]
    places: PlaceArgs,
    /// All events since this time, oldest first: how long ago (2h, '30min ago'), a day (2026-11-24,
    /// today, yesterday) or a time (2026-11-24T10:00Z; without Z, in this machine's time zone)
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "newest")]
    since: Option<DateTime<Utc>>,
    /// Only events before this time, written as for --since
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "follow")]
    until: Option<DateTime<Utc>>,
    /// Number of newest events to print, at most 10000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    newest: u32,
    /// Keep printing new events
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    format: ShowFormatArgs,
}

impl EventsArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let mut client = Client::connect(connection).await?;
        let (mut last, mut reopened, mut newest) = (0, 0, self.newest);
        loop {
            let before = last;
            let status = match self.read(&client, newest, &mut last).await? {
                Ok(()) if !self.follow => {
                    if last == 0 {
                        eprintln!("no event matches");
                    }
                    return Ok(());
                }
                // When a scheduler stops, the stream may end without an error.
                Ok(()) => Status::unavailable("the scheduler ended the stream"),
                Err(status) => status,
            };
            reopened = if last > before { 1 } else { reopened + 1 };
            if !self.follow || reopened > REOPENED_AT_MOST || !connection::broke(&status) {
                return Err(client.refusal(&status));
            }
            newest = ASKED_AGAIN;
            tokio::time::sleep(REOPEN_PAUSE).await;
            client.move_on().await;
        }
    }

    /// Prints the events of one stream until it ends. Events that were already printed are skipped.
    async fn read(&self, client: &Client, newest: u32, last: &mut i64) -> anyhow::Result<Result<(), Status>> {
        let request = EventsRequest {
            batch: self.batch.clone().unwrap_or_default(),
            site: self.site.clone().unwrap_or_default(),
            agent: self.agent.clone().unwrap_or_default(),
            newest,
            follow: self.follow,
            // After the stream broke, the newest events suffice, because earlier events were
            // already printed.
            since: self.since.filter(|_| *last == 0).map(timestamp),
            until: self.until.map(timestamp),
            cities: self.places.city.clone(),
            carriers: self.places.carrier.clone(),
            countries: self.places.country.clone(),
            kinds: self.kind.clone(),
        };
        let mut stream = match client.events().events(request).await {
            Ok(stream) => stream.into_inner(),
            Err(status) => return Ok(Err(status)),
        };
        let (known, view) = (*last, self.format.view());
        loop {
            match stream.message().await {
                Ok(Some(event)) if event.id <= known => {}
                Ok(Some(event)) => {
                    *last = event.id.max(*last);
                    print(&match self.format.is_json() {
                        false => view.fold(&line(&event, &view)),
                        true => escape_json(serde_json::to_string(&event)?) + "\n",
                    })?;
                }
                Ok(None) => return Ok(Ok(())),
                Err(status) => return Ok(Err(status)),
            }
        }
    }
}

/// Formats an event as one line: the time, the site or agent, what happened, and why.
pub(in crate::cli) fn line(event: &Event, view: &View) -> String {
    let mut words = vec![view.clock(event.at), event.noun.clone()];
    let about_site = !event.site.is_empty();
    if about_site {
        words.push(event.site.clone());
        let round = if event.round > 1 { format!(" round {}", event.round) } else { String::new() };
        words.push(format!("({}{round})", event.batch));
    } else if !event.agent.is_empty() {
        words.push(event.agent.clone());
    }
    words.push(event.what.clone());
    if event.token != 0 {
        words.push(format!("token {}", event.token));
    }
    if about_site && !event.agent.is_empty() {
        words.push(format!("agent {}", event.agent));
    }
    if event.incarnation != 0 {
        words.push(format!("incarnation {}", event.incarnation));
    }
    let line = words.join(" ");
    if event.cause.is_empty() { line } else { format!("{line}: {}", event.cause) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_as_a_sentence() {
        let event = Event {
            id: 7,
            at: Some(prost_types::Timestamp { seconds: 1_763_740_800, nanos: 0 }),
            noun: "lease".to_owned(),
            what: "expired".to_owned(),
            batch: "autumn".to_owned(),
            site: "a.cn".to_owned(),
            round: 2,
            token: 3,
            agent: "harbin-cernet".to_owned(),
            incarnation: 4,
            cause: "its session ended: superseded".to_owned(),
            ..Event::default()
        };
        assert_eq!(
            line(&event, &View { wide: true, ..View::plain() }),
            "2025-11-21T16:00:00.000Z lease a.cn (autumn round 2) expired token 3 agent harbin-cernet incarnation 4: \
             its session ended: superseded"
        );
        let opened = Event {
            noun: "session".to_owned(),
            what: "opened".to_owned(),
            agent: "a".to_owned(),
            incarnation: 1,
            ..Event::default()
        };
        assert_eq!(line(&opened, &View::plain()), "- session a opened incarnation 1");
    }
}
