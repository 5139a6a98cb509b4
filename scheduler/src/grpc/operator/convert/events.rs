//! Converts and validates the messages of the gRPC service for events.

use landfall_proto::v1;

use crate::model::site_name::SiteName;
use crate::model::{Incarnation, LeaseToken, SessionId};
use crate::store::reports::events::{Event, KINDS};

use super::filters::{Places, TimeRange};
use super::{InvalidField, timestamp};

/// Maximum number of events that a request for the newest events may ask for. Each event takes
/// about 200 bytes of memory.
const MOST_NEWEST: u32 = 10_000;

/// A validated request for events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::grpc) struct Wanted {
    pub(in crate::grpc) batch: Option<String>,
    pub(in crate::grpc) site: Option<SiteName>,
    /// The agent's name; empty if any agent is accepted.
    pub(in crate::grpc) agent: String,
    pub(in crate::grpc) places: Places,
    pub(in crate::grpc) newest: i64,
    pub(in crate::grpc) time: TimeRange,
    pub(in crate::grpc) kinds: Option<Vec<String>>,
    pub(in crate::grpc) follow: bool,
}

pub(in crate::grpc) fn wanted(request: v1::EventsRequest) -> Result<Wanted, InvalidField> {
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    if request.newest > MOST_NEWEST {
        return Err(InvalidField::new("newest", format!("must be at most {MOST_NEWEST}")));
    }
    if let Some(kind) = request.kinds.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
        return Err(InvalidField::new("kinds", format!("unknown kind '{kind}': the kinds are {}", KINDS.join(", "))));
    }
    if request.follow && request.until.is_some() {
        return Err(InvalidField::new("until", "cannot be combined with follow"));
    }
    Ok(Wanted {
        time: TimeRange::new(request.since, request.until)?,
        places: Places::new(&request.cities, &request.carriers, &request.countries),
        kinds: Some(request.kinds).filter(|kinds| !kinds.is_empty()),
        batch: some(request.batch),
        site: some(request.site).map(|site| site.parse().map_err(InvalidField::of("site"))).transpose()?,
        agent: request.agent,
        newest: request.newest.into(),
        follow: request.follow,
    })
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
