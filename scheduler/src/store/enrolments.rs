//! Enrolments: one-time tokens, and the credentials they become.
//!
//! Invariants: a token is kept only as its hash and becomes a credential at most once, whoever comes first under the
//! row's lock; enrolling a name again replaces its credential and nothing else, so that a lost machine can be
//! replaced without losing what its agent did.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;

use crate::gnp::Position;
use crate::model::AgentId;
use crate::naming;
use crate::secret::{Secret, SecretHash};

use super::{Error, minute};

/// The agent an operator wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: Name,
    /// The city.
    pub city: String,
    /// The carrier (ISP).
    pub carrier: String,
    /// ISO 3166-1 alpha-2; empty when unknown.
    pub country: String,
    /// Where it stands on the globe, where that is known.
    pub position: Option<Position>,
    /// What batches may ask for; none: what it had, where it is enrolled again.
    pub tags: Vec<String>,
    /// How long the token can be used.
    pub valid_for: Duration,
}

/// What an agent is to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// As the operator says.
    Given(String),
    /// As it was formed of city and carrier; it gets a number where it is taken.
    Formed(String),
}

/// A token just made.
#[derive(Debug, Clone)]
pub struct Enrolment {
    /// The agent's name.
    pub name: String,
    /// The token, in the clear for the only time.
    pub token: Secret,
    /// Until when it can be used.
    pub expires_at: DateTime<Utc>,
}

/// What a token became.
#[derive(Debug, Clone)]
pub struct Redeemed {
    /// The agent.
    pub agent: AgentId,
    /// Its credential, in the clear for the only time.
    pub credential: String,
    /// Its name.
    pub name: String,
    /// The city.
    pub city: String,
    /// The carrier (ISP).
    pub carrier: String,
    /// ISO 3166-1 alpha-2; empty when unknown.
    pub country: String,
}

/// Why a token is not taken.
#[derive(Debug, thiserror::Error)]
pub enum RedeemError {
    /// Nobody made it.
    #[error("the enrolment token is unknown to this scheduler: make one with `landfall agents enrol`")]
    Unknown,
    /// It has become a credential before.
    #[error("the enrolment token for {name} was used at {}: make a new one with `landfall agents enrol`", minute(.at))]
    Used {
        /// The agent's name.
        name: String,
        /// When.
        at: DateTime<Utc>,
    },
    /// Its time is over.
    #[error("the enrolment token for {name} expired at {}: make a new one with `landfall agents enrol`", minute(.at))]
    Expired {
        /// The agent's name.
        name: String,
        /// When.
        at: DateTime<Utc>,
    },
    /// No credential could be drawn.
    #[error("draw a credential")]
    Randomness(#[from] std::io::Error),
    /// The store failed.
    #[error("redeem an enrolment token")]
    Store(#[from] Error),
}

impl From<sqlx::Error> for RedeemError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Keeps a token for the agent that is wanted.
///
/// # Errors
/// When the database fails.
pub async fn create(conn: &mut PgConnection, wanted: &Wanted, token: Secret) -> Result<Enrolment, Error> {
    let name = match &wanted.name {
        Name::Given(name) => name.clone(),
        Name::Formed(base) => free_name(conn, base).await?,
    };
    let valid_for = PgInterval {
        months: 0,
        days: 0,
        microseconds: i64::try_from(wanted.valid_for.as_micros()).unwrap_or(i64::MAX),
    };
    let hash = token.hash();
    let expires_at = sqlx::query_scalar!(
        r#"
        insert into enrolments (token_hash, agent_name, city, carrier, country, expires_at, latitude, longitude, tags)
        values ($1, $2, $3, $4, $5, now() + $6, $7, $8, $9)
        returning expires_at
        "#,
        hash.as_bytes(),
        name,
        wanted.city,
        wanted.carrier,
        wanted.country,
        valid_for,
        wanted.position.map(Position::latitude),
        wanted.position.map(Position::longitude),
        &wanted.tags,
    )
    .fetch_one(conn)
    .await?;
    Ok(Enrolment { name, token, expires_at })
}

/// The name itself, or with the lowest number from 2 that no agent and no usable token has.
async fn free_name(conn: &mut PgConnection, base: &str) -> Result<String, Error> {
    // Two callers at once must not find the same name free.
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended($1, 7172))", base).fetch_one(&mut *conn).await?;
    let taken = sqlx::query_scalar!(
        r#"
        select name as "name!" from agents where starts_with(name, $1)
        union
        select agent_name from enrolments
        where starts_with(agent_name, $1) and used_at is null and expires_at > now()
        "#,
        base,
    )
    .fetch_all(conn)
    .await?;
    Ok(naming::first_free(base, |name| taken.iter().any(|one| one == name)))
}

/// Turns a token into an agent's credential, once.
///
/// # Errors
/// When the token is unknown, used or expired, or the database fails.
pub async fn redeem(conn: &mut PgConnection, token: &str) -> Result<Redeemed, RedeemError> {
    let hash = SecretHash::of(token.trim());
    let row = sqlx::query!(
        r#"
        select agent_name, city, carrier, country, latitude, longitude, tags, used_at, expires_at, expires_at <= now() as "expired!"
        from enrolments where token_hash = $1
        for update
        "#,
        hash.as_bytes(),
    )
    .fetch_optional(&mut *conn)
    .await?
    .ok_or(RedeemError::Unknown)?;
    if let Some(at) = row.used_at {
        return Err(RedeemError::Used { name: row.agent_name, at });
    }
    if row.expired {
        return Err(RedeemError::Expired { name: row.agent_name, at: row.expires_at });
    }
    let credential = Secret::generate()?;
    let credential_hash = credential.hash();
    sqlx::query!("update enrolments set used_at = now() where token_hash = $1", hash.as_bytes())
        .execute(&mut *conn)
        .await?;
    let agent = sqlx::query_scalar!(
        r#"
        insert into agents (name, city, carrier, country, credential_hash, latitude, longitude, tags)
        values ($1, $2, $3, $4, $5, $6, $7, $8)
        on conflict (name) do update
        set city = excluded.city, carrier = excluded.carrier, country = excluded.country,
            latitude = excluded.latitude, longitude = excluded.longitude,
            tags = case when cardinality(excluded.tags) > 0 then excluded.tags else agents.tags end,
            credential_hash = excluded.credential_hash, enrolled_at = now(),
            draining_since = case when agents.removed_at is null then agents.draining_since end, removed_at = null
        returning id
        "#,
        row.agent_name,
        row.city,
        row.carrier,
        row.country,
        credential_hash.as_bytes(),
        row.latitude,
        row.longitude,
        &row.tags,
    )
    .fetch_one(conn)
    .await?;
    Ok(Redeemed {
        agent: AgentId::new(agent),
        credential: credential.reveal().to_owned(),
        name: row.agent_name,
        city: row.city,
        carrier: row.carrier,
        country: row.country,
    })
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::store::agents;

    fn wanted(name: Option<&str>) -> Wanted {
        Wanted {
            name: name.map_or_else(|| Name::Formed("harbin-cernet".into()), |name| Name::Given(name.into())),
            city: "Harbin".into(),
            carrier: "CERNET".into(),
            country: "CN".into(),
            position: None,
            tags: Vec::new(),
            valid_for: Duration::from_secs(60),
        }
    }

    async fn made(conn: &mut PgConnection, name: Option<&str>) -> Enrolment {
        create(conn, &wanted(name), Secret::generate().expect("randomness")).await.expect("an enrolment")
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_taken_default_name_gets_a_number(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("a connection");
        let first = made(&mut conn, None).await;
        assert_eq!(first.name, "harbin-cernet");
        redeem(&mut conn, first.token.reveal()).await.expect("redeemed");
        assert_eq!(made(&mut conn, None).await.name, "harbin-cernet-2");
        assert_eq!(made(&mut conn, None).await.name, "harbin-cernet-3");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn of_two_uses_at_once_exactly_one_wins(pool: PgPool) {
        let token = made(&mut pool.acquire().await.expect("a connection"), Some("a")).await.token;
        let attempt = || async {
            let mut tx = pool.begin().await.expect("a transaction");
            let redeemed = redeem(&mut tx, token.reveal()).await;
            tx.commit().await.expect("commit");
            redeemed
        };
        let (first, second) = tokio::join!(attempt(), attempt());
        let refused = match (&first, &second) {
            (Ok(_), Err(error)) | (Err(error), Ok(_)) => error.to_string(),
            both => panic!("{both:?}"),
        };
        assert!(refused.starts_with("the enrolment token for a was used at "), "{refused}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn stale_tokens_say_what_is_wrong_with_them(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("a connection");
        let token = made(&mut conn, Some("a")).await.token;
        sqlx::query("update enrolments set expires_at = now()").execute(&mut *conn).await.expect("expire");
        let expired = redeem(&mut conn, token.reveal()).await.expect_err("expired");
        assert!(matches!(expired, RedeemError::Expired { .. }), "{expired}");
        let unknown = redeem(&mut conn, "made up").await.expect_err("unknown");
        assert!(matches!(unknown, RedeemError::Unknown), "{unknown}");
        assert!(agents::list(&mut conn).await.expect("agents").is_empty());
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn enrolling_a_name_again_replaces_its_credential(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("a connection");
        let first = made(&mut conn, Some("a")).await;
        let first = redeem(&mut conn, first.token.reveal()).await.expect("redeemed");
        let second = made(&mut conn, Some("a")).await;
        let second = redeem(&mut conn, second.token.reveal()).await.expect("redeemed");
        assert_eq!(first.agent, second.agent);
        let old = agents::by_credential(&mut conn, &SecretHash::of(&first.credential)).await.expect("a lookup");
        let new = agents::by_credential(&mut conn, &SecretHash::of(&second.credential)).await.expect("a lookup");
        assert_eq!((old, new.map(|holder| holder.agent)), (None, Some(first.agent)));
    }
}
