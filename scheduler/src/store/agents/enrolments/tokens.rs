//! Lists, revokes and prunes enrolment tokens.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::{Error, minute};

use crate::store::rows::{Rows, Statement};
use crate::store::types::{Interval, Unsigned};

/// Maximum number of tokens listed; older ones are omitted.
const MOST_LISTED: i64 = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Open,
    /// The token was exchanged for a credential.
    Used,
    Expired,
    Revoked,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The identifier by which operators refer to the token.
    pub id: String,
    pub name: String,
    pub city: String,
    pub carrier: String,
    /// The country's ISO 3166-1 alpha-2 code; empty when unknown.
    pub country: String,
    pub made_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
    /// When the token was used, revoked or expired; `None` while the token is open.
    pub ended_at: Option<DateTime<Utc>>,
    pub state: State,
    pub replaces: bool,
}

/// The newest `MOST_LISTED` open tokens, oldest first. If `all` is set, the list also contains
/// ended tokens that are still stored. Also returns the number of older tokens that were omitted.
pub async fn list(conn: &mut PgConnection, all: bool) -> Result<(Vec<Token>, u64), Error> {
    let rows = sqlx::query!(
        r#"
        select encode(substring(token_hash for 5), 'hex') as "id!", agent_name, city, carrier, country, created_at, expires_at,
               used_at, revoked_at, replaces, expires_at <= now() as "expired!", count(*) over () as "all!: Unsigned<u64>"
        from enrolments
        where $1 or (used_at is null and revoked_at is null and expires_at > now())
        order by created_at desc, agent_name desc
        limit $2
        "#,
        all,
        MOST_LISTED,
    )
    .all(conn)
    .await?;
    let known = rows.first().map_or(0, |row| row.all.0);
    let older = known - u64::try_from(rows.len()).unwrap_or(known);
    let mut tokens = Vec::with_capacity(rows.len());
    for row in rows.into_iter().rev() {
        let (state, ended_at) = stands(row.used_at, row.revoked_at, row.expired.then_some(row.expires_at));
        tokens.push(Token {
            id: row.id,
            name: row.agent_name,
            city: row.city,
            carrier: row.carrier,
            country: row.country,
            made_at: row.created_at,
            expires_at: row.expires_at,
            ended_at,
            state,
            replaces: row.replaces,
        });
    }
    Ok((tokens, older))
}

type At = Option<DateTime<Utc>>;

/// A token's state and, unless the token is open, the time when it was used, revoked or expired.
fn stands(used: At, revoked: At, expired: At) -> (State, At) {
    match (used, revoked, expired) {
        (Some(at), ..) => (State::Used, Some(at)),
        (None, Some(at), _) => (State::Revoked, Some(at)),
        (None, None, Some(at)) => (State::Expired, Some(at)),
        (None, None, None) => (State::Open, None),
    }
}

pub async fn open_tokens(conn: &mut PgConnection) -> Result<u64, Error> {
    let count = sqlx::query_scalar!(
        r#"
        select count(*) as "count!: Unsigned<u64>" from enrolments where used_at is null and revoked_at is null and expires_at > now()
        "#,
    )
    .one(conn)
    .await?;
    Ok(count.0)
}

pub async fn is_open(conn: &mut PgConnection, name: &str) -> Result<bool, Error> {
    sqlx::query_scalar!(
        r#"
        select exists (
            select from enrolments
            where agent_name = $1 and used_at is null and revoked_at is null and expires_at > now()
        ) as "open!"
        "#,
        name,
    )
    .one(conn)
    .await
}

/// The message for an agent that has an open token but has not been enrolled yet.
pub fn not_yet(name: &str) -> String {
    format!(
        "{name} has not enrolled yet, its token is open: `landfall agents tokens` shows it, `landfall agents revoke {name}` voids it"
    )
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevokedToken {
    pub name: String,
    /// Whether the token had already been revoked.
    pub before: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    #[error("the token for {name} was used at {}: `landfall agents remove {name}` removes the agent", minute(.at))]
    Used { name: String, at: DateTime<Utc> },
    #[error("the token for {name} expired at {}: nobody can use it", minute(.at))]
    Expired { name: String, at: DateTime<Utc> },
    #[error("no token has the id {0} or is for an agent of that name: `landfall agents tokens` lists the open tokens")]
    Unknown(String),
    #[error("revoke an enrolment token")]
    Store(#[from] Error),
}

/// Revokes the open token whose agent name or identifier is `named`.
pub async fn revoke(conn: &mut PgConnection, named: &str) -> Result<RevokedToken, RevokeError> {
    let revoked = sqlx::query_scalar!(
        r#"
        update enrolments set revoked_at = now()
        where used_at is null and revoked_at is null and expires_at > now()
          and (agent_name = $1 or encode(substring(token_hash for 5), 'hex') = $1)
        returning agent_name
        "#,
        named,
    )
    .all(conn)
    .await?;
    if let Some(name) = revoked.into_iter().next() {
        return Ok(RevokedToken { name, before: false });
    }
    let newest = sqlx::query!(
        r#"
        select agent_name, used_at, revoked_at, expires_at from enrolments
        where agent_name = $1 or encode(substring(token_hash for 5), 'hex') = $1
        order by created_at desc limit 1
        "#,
        named,
    )
    .optional(conn)
    .await?
    .ok_or_else(|| RevokeError::Unknown(named.to_owned()))?;
    let name = newest.agent_name;
    match stands(newest.used_at, newest.revoked_at, Some(newest.expires_at)) {
        (State::Used, Some(at)) => Err(RevokeError::Used { name, at }),
        (State::Revoked, _) => Ok(RevokedToken { name, before: true }),
        _ => Err(RevokeError::Expired { name, at: newest.expires_at }),
    }
}

/// Deletes tokens that expired at least `keep` ago. Returns the number of deleted tokens.
pub async fn prune(conn: &mut PgConnection, keep: Duration) -> Result<u64, Error> {
    sqlx::query!("delete from enrolments where expires_at < now() - $1::interval", Interval(keep),).affected(conn).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::agents::enrolments::{AgentRequest, Name, create, redeem};
    use crate::store::fixtures::{self, Conn};

    const HOUR: Duration = Duration::from_secs(3600);

    async fn made(conn: &mut PgConnection, name: &str) -> crate::store::agents::enrolments::Enrolment {
        let wanted = AgentRequest {
            name: Name::Given(name.into()),
            city: "北京".into(),
            carrier: "电信".into(),
            country: "CN".into(),
            position: None,
            tags: vec!["fast".into(), "spare".into()],
            valid_for: HOUR,
            replaces: false,
        };
        create(conn, &[wanted]).await.expect("made").remove(0)
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn tokens_are_listed_by_how_they_stand_and_forgotten_in_the_end(mut conn: Conn) {
        let (open, used) = (made(&mut conn, "open").await, made(&mut conn, "used").await);
        let redeemed = redeem(&mut conn, used.token.reveal(), fixtures::MAX_CRASHES).await.expect("used");
        let tags: Vec<String> = sqlx::query_scalar("select tags from agents where id = $1")
            .bind(redeemed.agent.get())
            .fetch_one(&mut *conn)
            .await
            .expect("ask");
        assert_eq!(tags, ["fast", "spare"]);
        let revoked = made(&mut conn, "revoked").await;
        assert!(!revoke(&mut conn, &revoked.id).await.expect("by its short name").before);
        made(&mut conn, "expired").await;
        fixtures::execute(
            &mut conn,
            "update enrolments set expires_at = now() - interval '2 hours' where agent_name = 'expired'",
        )
        .await;
        let (listed, older) = list(&mut conn, false).await.expect("list");
        assert_eq!((listed.len(), older, listed[0].id.as_str()), (1, 0, open.id.as_str()));
        let mut states: Vec<(String, State)> =
            list(&mut conn, true).await.expect("list").0.into_iter().map(|token| (token.name, token.state)).collect();
        states.sort_by(|one, other| one.0.cmp(&other.0));
        let expected = [State::Expired, State::Open, State::Revoked, State::Used];
        assert_eq!(states.iter().map(|(_, state)| *state).collect::<Vec<_>>(), expected);
        assert_eq!(prune(&mut conn, 3 * HOUR).await.expect("prune"), 0);
        assert_eq!(prune(&mut conn, HOUR).await.expect("prune"), 1);
        assert_eq!(open_tokens(&mut conn).await.expect("count"), 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_token_that_is_not_open_is_not_revoked(mut conn: Conn) {
        let unknown = revoke(&mut conn, "a").await.expect_err("nothing");
        assert!(matches!(unknown, RevokeError::Unknown(_)), "{unknown}");
        made(&mut conn, "a").await;
        assert_eq!(revoke(&mut conn, "a").await.expect("open"), RevokedToken { name: "a".into(), before: false });
        assert_eq!(revoke(&mut conn, "a").await.expect("again"), RevokedToken { name: "a".into(), before: true });
        let token = made(&mut conn, "a").await;
        redeem(&mut conn, token.token.reveal(), fixtures::MAX_CRASHES).await.expect("used");
        let used = revoke(&mut conn, "a").await.expect_err("used");
        assert!(matches!(used, RevokeError::Used { .. }), "{used}");
        made(&mut conn, "b").await;
        fixtures::execute(&mut conn, "update enrolments set expires_at = now()").await;
        let expired = revoke(&mut conn, "b").await.expect_err("expired");
        assert!(matches!(expired, RevokeError::Expired { .. }), "{expired}");
    }
}
