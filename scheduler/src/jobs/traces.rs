//! Traces: follows the log of tasks' transitions. Sends a span for each state that a task has left,
//! and a span for the whole task when it ends. No other work waits for traces, and the code that
//! moves tasks does not depend on traces.
//!
//! Only the leader of the role reap follows the log, from the newest event on. The number of
//! unfinished tasks in memory is bounded; the scheduler sends no spans for tasks beyond this limit.
//! If a pass reads [`MOST_EVENTS`] events or more, the share of traced tasks is halved, so that the
//! cost stays bounded.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use landfall_proto::traces::{Attribute, Service, Span, SpanKey, TraceSender, exporter};
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::Scheduler;
use crate::model::{TaskId, TaskState};
use crate::store::Db;
use crate::store::reports::events::{self, Cursor, Event, Filter, PAGE};
use crate::store::schedulers::Role;

use super::leadership::{HeldTerms, Leader, NotLeader};
use super::period::{Period, run_periodic};

/// Time between two reads of the log.
const PERIOD: Period = Period::Steady(Duration::from_secs(1));
/// Maximum number of unfinished tasks in memory. Each task takes about 100 bytes.
const MOST_TASKS: usize = 100_000;
/// If a pass reads this many events, fewer tasks are traced from then on. With this limit, a busy
/// scheduler grants 0.98 times as many leases as without traces (`lab bench --only traces`).
const MOST_EVENTS: usize = 1_000;
/// At least one task in this many is traced.
const RAREST: i64 = 1 << 16;

/// Sends traces until `stop`, if the configuration names a collector.
pub async fn run(scheduler: Scheduler, terms: HeldTerms, url: String, stop: CancellationToken) {
    let Some(collector) = scheduler.config.otlp.clone() else { return stop.cancelled().await };
    let service = Service { name: "landfall", version: crate::VERSION, instance: &url };
    let (sender, exporter) = exporter(collector, service);
    let followed = Mutex::new(Followed::from_position(None));
    let leader = terms.on(Role::Reap, &scheduler);
    let follow = async {
        let sender = sender;
        let pass = || follow(&leader, &scheduler.db, &followed, &sender);
        run_periodic("traces", PERIOD, &Notify::new(), &scheduler.wakes, stop.clone(), pass).await;
    };
    tokio::join!(follow, exporter.run(stop.cancelled()));
}

/// How far the log was read, and the unfinished tasks read from it.
#[derive(Debug)]
struct Followed {
    next: Option<Cursor>,
    tasks: UnfinishedTasks,
    share: TracedShare,
}

/// Tasks whose number is a multiple of `one_in`, a power of two, are traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TracedShare {
    one_in: i64,
}

impl Followed {
    fn from_position(next: Option<Cursor>) -> Self {
        Self { next, tasks: UnfinishedTasks::default(), share: TracedShare::ALL }
    }
}

impl TracedShare {
    const ALL: Self = Self { one_in: 1 };

    /// The share to use after a pass has read `events` events. `full` says whether the last page of
    /// events was full; a page that is not full ends the pass. The share grows only if the next
    /// pass would stay far below the limit, so that it does not alternate between two values.
    fn next(self, events: usize, full: bool) -> Self {
        match full {
            true if events >= MOST_EVENTS => Self { one_in: (self.one_in * 2).min(RAREST) },
            false if events < MOST_EVENTS / 4 => Self { one_in: (self.one_in / 2).max(1) },
            _ => self,
        }
    }

    const fn includes(self, task: TaskId) -> bool {
        task.get() % self.one_in == 0
    }
}

/// Reads the log from the last known position to its end, and sends the completed spans.
async fn follow(leader: &Leader, db: &Db, followed: &Mutex<Followed>, sender: &TraceSender) -> anyhow::Result<()> {
    let mut followed = followed.lock().await;
    let mut events = 0;
    loop {
        let filter = filter(followed.share);
        let next = followed.next;
        let read = leader.tx("follow the log", |tx| {
            let filter = &filter;
            async move {
                Ok(match next {
                    Some(next) => events::after(tx, filter, next).await?,
                    None => events::newest(tx, filter, 0).await?,
                })
            }
            .boxed()
        });
        let page = match read.await {
            Ok(page) => page,
            Err(error) => {
                if error.is::<NotLeader>() {
                    // Remembers the end of the log, so that this scheduler misses no event when it
                    // takes the role.
                    let mut conn = db.read("find the end of the log").await?;
                    *followed = Followed::from_position(Some(events::newest(&mut conn, &filter, 0).await?.next));
                }
                return Err(error);
            }
        };
        if followed.next.replace(page.next).is_none() {
            return Ok(());
        }
        page.events.iter().flat_map(|event| followed.tasks.moved(event)).for_each(|span| sender.send(span));
        events += page.events.len();
        let full = i64::try_from(page.events.len()).is_ok_and(|count| count == PAGE);
        let share = followed.share.next(events, full);
        if share.one_in > followed.share.one_in {
            followed.tasks.0.retain(|task, _| share.includes(*task));
        }
        followed.share = share;
        if !full {
            return Ok(());
        }
    }
}

fn filter(share: TracedShare) -> Filter {
    Filter { kinds: Some(vec!["task".to_owned()]), one_task_in: Some(share.one_in), ..Filter::default() }
}

/// The newest state of each unfinished task.
#[derive(Debug, Default)]
struct UnfinishedTasks(HashMap<TaskId, Task>);

#[derive(Debug)]
struct Task {
    /// When the task was submitted or, if that event was not read, first seen.
    began: DateTime<Utc>,
    state: TaskState,
    key: SpanKey,
    since: DateTime<Utc>,
    agent: Option<String>,
}

impl UnfinishedTasks {
    /// The spans that an event of a task completes.
    fn moved(&mut self, event: &Event) -> Vec<Span> {
        let (Some(of), Some(state)) = (&event.task, TaskState::named(&event.what)) else { return Vec::new() };
        let former = self.0.remove(&of.id);
        let ended = matches!(state, TaskState::Done | TaskState::Failed | TaskState::Cancelled);
        let agent = event.agent.clone().or_else(|| former.as_ref()?.agent.clone());
        let began = former.as_ref().map_or(event.at, |former| former.began);
        if !ended && self.0.len() < MOST_TASKS {
            let key = match (state, event.token) {
                (TaskState::Leased, Some(token)) => SpanKey::Lease(token.get()),
                _ => SpanKey::State(event.cursor.id()),
            };
            let task = Task { began, state, key, since: event.at, agent: agent.clone() };
            self.0.insert(of.id, task);
        }
        let Some(former) = former else { return Vec::new() };
        let agent = agent.map(|agent| ("landfall.agent", Attribute::Text(agent)));
        let span = |key, parent, name: String, began: DateTime<Utc>, more: Vec<(&'static str, Attribute)>| Span {
            task: of.id.get(),
            key,
            parent,
            name,
            began: began.into(),
            ended: event.at.into(),
            attributes: more.into_iter().chain(agent.clone()).collect(),
            failure: None,
        };
        let mut spans =
            vec![span(former.key, Some(SpanKey::Task), former.state.name().to_owned(), former.since, Vec::new())];
        if ended {
            let text = |key, text: &str| (key, Attribute::Text(text.to_owned()));
            let round = ("landfall.round", Attribute::Number(of.round.into()));
            let more = vec![
                text("landfall.site", &of.site),
                text("landfall.batch", &of.batch),
                round,
                text("landfall.state", state.name()),
            ];
            let mut whole = span(SpanKey::Task, None, "site".to_owned(), began, more);
            whole.failure = (state == TaskState::Failed).then(|| event.cause.clone().unwrap_or_default());
            spans.push(whole);
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use crate::model::LeaseToken;
    use crate::store::reports::events::TaskOf;

    use super::*;

    fn event(at: i64, what: &str, token: Option<i64>) -> Event {
        Event {
            cursor: Cursor::default(),
            at: DateTime::from_timestamp(at, 0).expect("a time"),
            noun: "task".to_owned(),
            what: what.to_owned(),
            task: Some(TaskOf { id: TaskId::new(5), batch: "b".to_owned(), site: "s".to_owned(), round: 1 }),
            token: token.map(LeaseToken::new),
            agent: (what == "assigned").then(|| "a".to_owned()),
            session: None,
            incarnation: None,
            cause: (what == "failed").then(|| "unreachable".to_owned()),
        }
    }

    #[test]
    fn the_share_of_traced_tasks_keeps_a_pass_short_and_returns_to_all() {
        let page = usize::try_from(PAGE).expect("small");
        // Returns the number of events that a pass reads if `moved` events of tasks happened, and
        // the share of traced tasks after the pass.
        let pass = |mut share: TracedShare, moved: usize| {
            let (mut unread, mut events) = (moved, 0);
            loop {
                let one_in = usize::try_from(share.one_in).expect("small");
                let read = (unread / one_in).min(page);
                unread -= read * one_in;
                events += read;
                share = share.next(events, read == page);
                if read < page {
                    return (events, share);
                }
            }
        };
        for (moved, one_in) in [(10, 1), (900, 1), (1_100, 2), (26_000, 32), (1_000_000, 1 << 10)] {
            let (first, mut share) = pass(TracedShare::ALL, moved);
            assert!(first <= MOST_EVENTS + 16 * page, "{moved}: {first} events in the first pass");
            for _ in 0..5 {
                let (events, next) = pass(share, moved);
                assert!(events <= MOST_EVENTS && next == share, "{moved}: {events} events, then {next:?}");
                share = next;
            }
            assert_eq!(share.one_in, one_in, "{moved}");
            let quiet = (0..20).fold(share, |share, _| pass(share, 3).1);
            assert_eq!(quiet, TracedShare::ALL);
        }
        assert!(
            TracedShare { one_in: 4 }.includes(TaskId::new(8)) && !TracedShare { one_in: 4 }.includes(TaskId::new(6))
        );
    }

    #[test]
    fn a_span_covers_each_state_and_one_the_task() {
        let mut tasks = UnfinishedTasks::default();
        let mut spans = Vec::new();
        for (at, what, token) in [
            (1, "submitted", None),
            (2, "measuring", None),
            (4, "assigned", None),
            (7, "leased", Some(3)),
            (9, "failed", Some(3)),
        ] {
            spans.extend(tasks.moved(&event(at, what, token)));
        }
        let seconds = |span: &Span| span.ended.duration_since(span.began).expect("in order").as_secs();
        let seen: Vec<(&str, u64)> = spans.iter().map(|span| (span.name.as_str(), seconds(span))).collect();
        assert_eq!(seen, [("submitted", 1), ("measuring", 2), ("assigned", 3), ("leased", 2), ("site", 8)]);
        assert_eq!((spans[3].key, spans[3].parent), (SpanKey::Lease(3), Some(SpanKey::Task)));
        assert_eq!((spans[4].key, spans[4].parent), (SpanKey::Task, None));
        assert_eq!(spans[4].failure.as_deref(), Some("unreachable"));
        let agent = ("landfall.agent", Attribute::Text("a".to_owned()));
        assert!(spans[2..].iter().all(|span| span.attributes.contains(&agent)), "{spans:?}");
        assert!(tasks.0.is_empty());
    }
}
