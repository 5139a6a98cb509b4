//! Converts and validates the messages about enrolments: requests for tokens, and their limits.

use std::fmt::Display;
use std::time::Duration;

use landfall_proto::v1;

use crate::grpc::identity::Identity;
use crate::model::geo::{Position, PositionError};
use crate::model::naming;
use crate::store::agents::enrolments::{AgentRequest, Enrolment, Name, Token};

use super::fleet::tags;
use super::{InvalidField, agent_name, bounded, count, line, timestamp};

/// Maximum number of agents enrolled at once. The number is limited because all results are sent in
/// one message.
pub(in crate::grpc) const MOST_ENROLMENTS: usize = 5_000;
/// Default validity of an enrolment token.
const DEFAULT_VALIDITY: Duration = Duration::from_secs(24 * 3600);
/// Minimum and maximum validity that can be requested.
const SHORTEST_VALIDITY: Duration = Duration::from_secs(600);
const LONGEST_VALIDITY: Duration = Duration::from_secs(30 * 24 * 3600);

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
pub(in crate::grpc) fn several(
    asked: Vec<v1::CreateEnrolmentRequest>,
) -> (Vec<usize>, Vec<AgentRequest>, Vec<v1::EnrolmentProblem>) {
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
pub(in crate::grpc) fn problem(index: usize, problem: &impl Display) -> v1::EnrolmentProblem {
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
pub(in crate::grpc) fn enrolment(
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
