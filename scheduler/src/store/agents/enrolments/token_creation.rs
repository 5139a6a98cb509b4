//! Makes one-time tokens for the agents of a request, or none if any name is refused.

use std::collections::HashMap;
use std::io;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::machine::secret::{Secret, SecretHash, hex};
use crate::model::geo::Position;
use crate::store::Error;
use crate::store::agents::enrolments::agent_request::AgentRequest;
use crate::store::agents::enrolments::names::{NameRefusal, TakenNames};
use crate::store::rows::{Rows, Statement};
use crate::store::types::Interval;

/// Number of bytes of a token's hash that form the token's identifier.
const ID_BYTES: usize = 5;

#[derive(Debug, Clone)]
pub struct Enrolment {
    /// The identifier by which operators refer to the token.
    pub id: String,
    pub name: String,
    /// The token in clear text, returned only here.
    pub token: Secret,
    pub expires_at: DateTime<Utc>,
    pub replaces: bool,
    /// Whether the name belongs to an agent that is in use now.
    pub in_use: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The refusals, each with the index of its name in the request.
    #[error("{}", first(.0))]
    Refused(Vec<(usize, NameRefusal)>),
    #[error("draw a token")]
    Randomness(#[from] io::Error),
    #[error("make an enrolment token")]
    Store(#[from] Error),
}

fn first(refused: &[(usize, NameRefusal)]) -> String {
    refused.first().map(|(_, refusal)| refusal.to_string()).unwrap_or_default()
}

/// Makes a token for every agent of the request, or none if any name is refused. Run in a
/// transaction.
pub async fn create(conn: &mut PgConnection, wanted: &[AgentRequest]) -> Result<Vec<Enrolment>, CreateError> {
    // Prevents two concurrent requests from getting the same free name.
    sqlx::query!("select pg_advisory_xact_lock(7172)").run(conn).await?;
    let taken = TakenNames::of(conn, wanted).await?;
    let names = taken.names(wanted).map_err(CreateError::Refused)?;
    let secrets = wanted.iter().map(|_| Secret::generate()).collect::<io::Result<Vec<_>>>()?;
    let ends = insert(conn, wanted, &names, &secrets).await?;
    let made = names.into_iter().zip(secrets).zip(wanted).map(|((name, token), wanted)| {
        let hash = token.hash();
        let expires_at = ends.get(hash.as_bytes()).copied().unwrap_or_default();
        let in_use = taken.in_use(&name);
        Enrolment { id: id(&hash), name, token, expires_at, replaces: wanted.replaces, in_use }
    });
    Ok(made.collect())
}

/// Stores the tokens, and returns their expiry times by hash.
async fn insert(
    conn: &mut PgConnection,
    wanted: &[AgentRequest],
    names: &[String],
    secrets: &[Secret],
) -> Result<HashMap<Vec<u8>, DateTime<Utc>>, Error> {
    let hashes: Vec<Vec<u8>> = secrets.iter().map(|secret| secret.hash().as_bytes().to_vec()).collect();
    let texts = |of: fn(&AgentRequest) -> &String| wanted.iter().map(of).cloned().collect::<Vec<String>>();
    let degrees = |of: fn(Position) -> f64| wanted.iter().map(|one| one.position.map(of)).collect::<Vec<Option<f64>>>();
    // Tags contain no spaces, so they can be joined with spaces.
    let tags: Vec<String> = wanted.iter().map(|one| one.tags.join(" ")).collect();
    let lives: Vec<Interval> = wanted.iter().map(|one| Interval(one.valid_for)).collect();
    let replaces: Vec<bool> = wanted.iter().map(|one| one.replaces).collect();
    let made = sqlx::query!(
        r#"
        insert into enrolments (token_hash, agent_name, city, carrier, country, latitude, longitude, tags, replaces, expires_at)
        select hash, name, city, carrier, country, latitude, longitude, string_to_array(tags, ' '), replaces,
               now() + lives
        from unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::text[], $6::double precision[], $7::double precision[],
                    $8::text[], $9::boolean[], $10::interval[])
            as wanted (hash, name, city, carrier, country, latitude, longitude, tags, replaces, lives)
        returning token_hash, expires_at
        "#,
        &hashes,
        names,
        &texts(|one| &one.city),
        &texts(|one| &one.carrier),
        &texts(|one| &one.country),
        &degrees(Position::latitude) as &[Option<f64>],
        &degrees(Position::longitude) as &[Option<f64>],
        &tags,
        &replaces,
        &lives as _,
    )
    .all(conn)
    .await?;
    Ok(made.into_iter().map(|row| (row.token_hash, row.expires_at)).collect())
}

fn id(hash: &SecretHash) -> String {
    hex(&hash.as_bytes()[..ID_BYTES])
}
