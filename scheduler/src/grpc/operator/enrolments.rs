//! Makes, lists and revokes enrolment tokens: validates the agents that they are for, limits their
//! number and validity.

use std::fmt::Display;
use std::time::Duration;

use futures_util::FutureExt as _;
use landfall_proto::v1;
use sqlx::PgConnection;
use tonic::Status;

use super::agents::tags;
use super::convert::{InvalidField, Places, agent_name, bounded, count, line, timestamp};
use super::named;
use super::pages::Page;
use super::settings::Identity;
use crate::Scheduler;
use crate::model::geo::{Position, PositionError};
use crate::model::naming;
use crate::store::agents::issued_tokens::{self, ListKey, RevokeError, State, Token};
use crate::store::agents::new_enrolments::{self, AgentRequest, CreateError, Enrolment, Name};
use crate::store::names::Noun;
use crate::store::{self, MayConflict, settings};

/// Maximum number of agents enrolled at once. The number is limited because all results are sent in
/// one message.
const MOST_ENROLMENTS: usize = 5_000;
/// Number of tokens that a list reads at once, to narrow them by place.
const PIECE: i64 = 1_000;
/// Default validity of an enrolment token.
const DEFAULT_VALIDITY: Duration = Duration::from_secs(24 * 3600);
/// Minimum and maximum validity that can be requested.
const SHORTEST_VALIDITY: Duration = Duration::from_secs(600);
const LONGEST_VALIDITY: Duration = Duration::from_secs(30 * 24 * 3600);

/// Makes a token for one agent.
pub(super) async fn create(
    scheduler: &Scheduler,
    identity: &Identity,
    request: v1::CreateEnrolmentRequest,
) -> Result<v1::CreateEnrolmentResponse, Status> {
    let wanted = &[AgentRequest::try_from(request)?];
    let mut made = scheduler
        .operators
        .tx("create an enrolment", |tx| {
            async move {
                let made = new_enrolments::create(tx, wanted).await?;
                Ok::<_, Status>(handed_out(scheduler, identity, tx, made).await?)
            }
            .boxed()
        })
        .await?;
    Ok(made.pop().unwrap_or_default())
}

/// Makes tokens for several agents, or none if one of the requests has a problem.
pub(super) async fn create_several(
    scheduler: &Scheduler,
    identity: &Identity,
    request: v1::CreateEnrolmentsRequest,
) -> Result<v1::CreateEnrolmentsResponse, Status> {
    let v1::CreateEnrolmentsRequest { enrolments: asked, dry_run } = request;
    if asked.len() > MOST_ENROLMENTS {
        let found = asked.len();
        return Err(Status::invalid_argument(format!(
            "enrolments: {found}, but one request may have at most {MOST_ENROLMENTS}"
        )));
    }
    let (places, wanted, mut problems) = several(asked);
    let (wanted, only_try) = (&wanted, dry_run || !problems.is_empty());
    let enrolments = match scheduler
        .operators
        .tx("create enrolments", |tx| {
            async move {
                let made = new_enrolments::create(tx, wanted).await?;
                if only_try { Err(NotMade::Tried) } else { Ok(handed_out(scheduler, identity, tx, made).await?) }
            }
            .boxed()
        })
        .await
    {
        Ok(enrolments) => enrolments,
        Err(NotMade::Tried) => Vec::new(),
        Err(NotMade::Create(CreateError::Refused(refused))) => {
            problems.extend(refused.iter().map(|(index, refusal)| problem(places[*index], refusal)));
            problems.sort_by_key(|problem| problem.index);
            Vec::new()
        }
        Err(NotMade::Create(error)) => return Err(error.into()),
    };
    Ok(v1::CreateEnrolmentsResponse { enrolments, problems })
}

/// Why a request for several tokens made none.
#[derive(Debug, thiserror::Error)]
enum NotMade {
    #[error("the request was only tried")]
    Tried,
    #[error(transparent)]
    Create(#[from] CreateError),
}

impl From<store::Error> for NotMade {
    fn from(error: store::Error) -> Self {
        Self::Create(error.into())
    }
}

impl MayConflict for NotMade {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Create(error) if error.is_conflict())
    }
}

pub(super) async fn list(
    scheduler: &Scheduler,
    request: v1::ListEnrolmentsRequest,
) -> Result<v1::ListEnrolmentsResponse, Status> {
    let asked = &request;
    let page = Page::<ListKey>::of(asked)?;
    let states = enrolment_states(&asked.states)?;
    let all = asked.all || states.iter().any(|state| *state != State::Open);
    let places = Places::new(&asked.cities, &asked.carriers, &asked.countries);
    let mut conn = scheduler.operators.read("list enrolments").await?;
    let wanted = |token: &Token| {
        places.include(&token.city, &token.carrier, &token.country)
            && (states.is_empty() || states.contains(&token.state))
    };
    let (mut listed, mut count, mut after) = (Vec::new(), 0, page.after.clone());
    loop {
        let piece = issued_tokens::list(&mut conn, all, after.as_ref(), PIECE).await?;
        let Some(last) = piece.last() else { break };
        after = Some(last.key());
        for token in piece.into_iter().filter(wanted) {
            count += 1;
            if listed.len() < page.len() {
                listed.push(token);
            }
        }
    }
    let (more, next_page_token) = page.rest(&listed, count, Token::key);
    let enrolments = listed.into_iter().map(Into::into).collect();
    Ok(v1::ListEnrolmentsResponse { enrolments, more, next_page_token })
}

pub(super) async fn revoke(
    scheduler: &Scheduler,
    request: v1::RevokeEnrolmentRequest,
) -> Result<v1::RevokeEnrolmentResponse, Status> {
    let name = request.named.as_str();
    let revoked = scheduler
        .operators
        .tx("revoke an enrolment", |tx| {
            async move {
                match issued_tokens::revoke(tx, name).await {
                    Err(error @ RevokeError::Unknown(_)) => {
                        Err(named::inexact(tx, Noun::Token, name, error.into()).await)
                    }
                    revoked => Ok(revoked?),
                }
            }
            .boxed()
        })
        .await?;
    Ok(v1::RevokeEnrolmentResponse { name: revoked.name, before: revoked.before })
}

/// The messages for new tokens, with all other data that an agent needs to enrol.
async fn handed_out(
    scheduler: &Scheduler,
    identity: &Identity,
    conn: &mut PgConnection,
    made: Vec<Enrolment>,
) -> Result<Vec<v1::CreateEnrolmentResponse>, store::Error> {
    let contact_url = settings::contact_url(conn).await?;
    let others = scheduler.wakes.others();
    let response = |made| enrolment(made, identity, contact_url.clone(), others.clone());
    Ok(made.into_iter().map(response).collect())
}

impl TryFrom<v1::CreateEnrolmentRequest> for AgentRequest {
    type Error = InvalidField;

    fn try_from(request: v1::CreateEnrolmentRequest) -> Result<Self, InvalidField> {
        let valid_for = bounded("valid_for", request.valid_for, SHORTEST_VALIDITY, LONGEST_VALIDITY)?;
        let (city, carrier) = (line("city", &request.city)?, line("carrier", &request.carrier)?);
        let name = match request.name {
            empty if empty.is_empty() => {
                Name::Formed(naming::formed(&city, &carrier).map_err(InvalidField::of("name"))?)
            }
            given => Name::Given(agent_name("name", &given)?),
        };
        Ok(Self {
            name,
            city,
            carrier,
            country: country(&request.country)?,
            position: position(request.latitude, request.longitude)?,
            tags: tags("tags", &request.tags)?,
            valid_for: valid_for.unwrap_or(DEFAULT_VALIDITY),
            replaces: request.replaces,
        })
    }
}

fn country(text: &str) -> Result<String, InvalidField> {
    let country = text.trim().to_ascii_uppercase();
    if country.is_empty() || (country.len() == 2 && country.bytes().all(|byte| byte.is_ascii_uppercase())) {
        return Ok(country);
    }
    Err(InvalidField::new("country", "not a two-letter country code (ISO 3166-1)"))
}

fn position(latitude: Option<f64>, longitude: Option<f64>) -> Result<Option<Position>, InvalidField> {
    Position::from_parts(latitude, longitude).map_err(|problem| {
        let field = match problem {
            PositionError::Latitude => "latitude",
            PositionError::Longitude => "longitude",
            PositionError::Half if latitude.is_none() => "latitude",
            PositionError::Half => "longitude",
        };
        InvalidField::new(field, problem.to_string())
    })
}

/// Parses several enrolment requests. Returns the valid requests with their indexes, and the
/// problems of the invalid requests.
fn several(asked: Vec<v1::CreateEnrolmentRequest>) -> (Vec<usize>, Vec<AgentRequest>, Vec<v1::EnrolmentProblem>) {
    let (mut places, mut wanted, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for (index, one) in asked.into_iter().enumerate() {
        match AgentRequest::try_from(one) {
            Ok(one) => {
                places.push(index);
                wanted.push(one);
            }
            Err(problem) => problems.push(self::problem(index, &problem)),
        }
    }
    (places, wanted, problems)
}

/// The message about a problem in one of several requests.
fn problem(index: usize, problem: &impl Display) -> v1::EnrolmentProblem {
    v1::EnrolmentProblem { index: count(index), problem: problem.to_string() }
}

impl From<Token> for v1::Enrolment {
    fn from(token: Token) -> Self {
        Self {
            enrolment_id: token.id,
            name: token.name,
            city: token.city,
            carrier: token.carrier,
            country: token.country,
            state: v1::EnrolmentState::from(token.state).into(),
            made_at: Some(timestamp(token.made_at)),
            expires_at: Some(timestamp(token.expires_at)),
            ended_at: token.ended_at.map(timestamp),
            replaces: token.replaces,
        }
    }
}

/// The message for a new token. It includes the data with which the agent finds and recognises the
/// scheduler.
fn enrolment(
    enrolment: Enrolment,
    identity: &Identity,
    contact_url: Option<String>,
    others: Vec<String>,
) -> v1::CreateEnrolmentResponse {
    v1::CreateEnrolmentResponse {
        enrolment_id: enrolment.id,
        replaces: enrolment.replaces,
        in_use: enrolment.in_use,
        token: enrolment.token.reveal().to_owned(),
        name: enrolment.name,
        expires_at: Some(timestamp(enrolment.expires_at)),
        ca_fingerprint: identity.ca_fingerprint.clone().unwrap_or_default(),
        scheduler_url: identity.scheduler_url.clone(),
        contact_url: contact_url.unwrap_or_default(),
        other_scheduler_urls: others,
    }
}

fn enrolment_states(asked: &[i32]) -> Result<Vec<State>, InvalidField> {
    let known = |value: i32| State::try_from(v1::EnrolmentState::try_from(value).ok()?).ok();
    let unknown = |value| InvalidField::new("states", format!("{value} is not a token's state"));
    asked.iter().map(|value| known(*value).ok_or_else(|| unknown(*value))).collect()
}
