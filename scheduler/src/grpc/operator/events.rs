//! Implements the operators' gRPC service for the log of events.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, stream};
use landfall_proto::v1;
use landfall_proto::v1::event_service_server::EventService;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::convert::{InvalidField, Places, TimeRange, timestamp};
use super::named;
use super::services::OperatorServices;
use crate::Scheduler;
use crate::grpc::errors;
use crate::model::site_name::SiteName;
use crate::model::{Incarnation, LeaseToken, SessionId};
use crate::store::reports::events::{self, Cursor, Event, EventsSince, Filter, KINDS, Page};

/// Maximum number of events that a request for the newest events may ask for. Each event takes
/// about 200 bytes of memory.
const MOST_NEWEST: u32 = 10_000;
/// Interval at which new events are sent to an operator who follows the log.
const FOLLOW_PERIOD: Duration = Duration::from_millis(500);

#[tonic::async_trait]
impl EventService for OperatorServices {
    type EventsStream = Pin<Box<dyn Stream<Item = Result<v1::Event, Status>> + Send>>;

    async fn events(&self, request: Request<v1::EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        let request = request.into_inner();
        let (time, site) = checked(&request)?;
        let newest = request.newest.into();
        let mut conn = self.scheduler.operators.read("find events").await?;
        let filter = filter(&mut conn, &request, site).await?;
        let (past, first) = match (time.since, time.until) {
            (Some(since), until) => {
                let past = EventsSince::since(&mut conn, since, until).await?;
                (Some(past), Page { events: Vec::new(), next: past.end() })
            }
            (None, Some(until)) => {
                let events = events::newest_before(&mut conn, &filter, until, newest).await?;
                (None, Page { events, next: Cursor::default() })
            }
            (None, None) => (None, events::newest(&mut conn, &filter, newest).await?),
        };
        drop(conn);
        let reader = Reader {
            scheduler: self.scheduler.clone(),
            shutdown: self.shutdown.clone(),
            filter,
            follow: request.follow,
            past,
            next: first.next,
            events: first.events.into(),
        };
        Ok(Response::new(Box::pin(reader.messages())))
    }
}

/// Checks the fields of a request. Returns the range of times and the site's parsed name.
fn checked(request: &v1::EventsRequest) -> Result<(TimeRange, Option<SiteName>), InvalidField> {
    if request.newest > MOST_NEWEST {
        return Err(InvalidField::new("newest", format!("must be at most {MOST_NEWEST}")));
    }
    if let Some(kind) = request.kinds.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
        return Err(InvalidField::new("kinds", format!("unknown kind '{kind}': the kinds are {}", KINDS.join(", "))));
    }
    if request.follow && request.until.is_some() {
        return Err(InvalidField::new("until", "cannot be combined with follow"));
    }
    let time = TimeRange::new(request.since, request.until)?;
    let site = Some(&request.site).filter(|site| !site.is_empty());
    let site = site.map(|site| site.parse().map_err(InvalidField::of("site"))).transpose()?;
    Ok((time, site))
}

/// Looks up the names in a request.
async fn filter(
    conn: &mut sqlx::PgConnection,
    request: &v1::EventsRequest,
    site: Option<SiteName>,
) -> Result<Filter, Status> {
    let v1::EventsRequest { batch, agent, cities, carriers, countries, kinds, .. } = request;
    let places = Places::new(cities, carriers, countries);
    let mut filter = Filter { kinds: Some(kinds.clone()).filter(|kinds| !kinds.is_empty()), ..Filter::default() };
    if !batch.is_empty() {
        filter.batch = Some(named::batch(conn, batch).await?.id);
    }
    if let Some(name) = site {
        filter.sites = Some(named::site(conn, &name).await?.ids());
    }
    filter.agents = named::agents_at(conn, agent, &places).await?;
    Ok(filter)
}

/// Reads the log for one operator. It keeps no database connection between two pages.
struct Reader {
    scheduler: Scheduler,
    shutdown: CancellationToken,
    filter: Filter,
    follow: bool,
    /// The part of the log's history that has not been read yet.
    past: Option<EventsSince>,
    next: Cursor,
    events: VecDeque<Event>,
}

impl Reader {
    fn messages(self) -> impl Stream<Item = Result<v1::Event, Status>> + Send {
        stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            loop {
                if let Some(event) = reader.events.pop_front() {
                    return Some((Ok(event.into()), Some(reader)));
                }
                let read = match reader.past {
                    Some(past) => reader.history(past).await,
                    None if reader.follow => reader.turn().await,
                    None => return None,
                };
                if let Err(status) = read {
                    return Some((Err(status), None));
                }
            }
        })
    }

    /// Reads the next page of the log's history.
    async fn history(&mut self, past: EventsSince) -> Result<(), Status> {
        let mut conn = self.scheduler.operators.read("read past events").await?;
        let (events, next) = events::past(&mut conn, &self.filter, past).await?;
        (self.events, self.past) = (events.into(), next);
        Ok(())
    }

    /// Waits for [`FOLLOW_PERIOD`], then reads the events that were committed in the meantime.
    async fn turn(&mut self) -> Result<(), Status> {
        tokio::select! {
            () = self.shutdown.cancelled() => return Err(errors::stopping()),
            () = tokio::time::sleep(FOLLOW_PERIOD) => {}
        }
        let read = async {
            let mut conn = self.scheduler.operators.read("follow events").await?;
            Ok(events::after(&mut conn, &self.filter, self.next).await?)
        };
        let page = self.scheduler.wakes.database.while_it_answers(read).await;
        let Page { events, next } = page.unwrap_or_else(|| Err(errors::away()))?;
        self.events = events.into();
        self.next = next;
        Ok(())
    }
}

impl From<Event> for v1::Event {
    fn from(event: Event) -> Self {
        let (task_id, batch, site, round) =
            event.task.map(|task| (task.id.get(), task.batch, task.site, task.round)).unwrap_or_default();
        Self {
            id: event.cursor.id(),
            at: Some(timestamp(event.at)),
            noun: event.noun,
            what: event.what,
            task_id,
            batch,
            site,
            round,
            token: event.token.map_or(0, LeaseToken::get),
            agent: event.agent.unwrap_or_default(),
            session_id: event.session.map_or(0, SessionId::get),
            incarnation: event.incarnation.map_or(0, Incarnation::get),
            cause: event.cause.unwrap_or_default(),
        }
    }
}
