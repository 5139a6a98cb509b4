//! Issued tokens of enrolment: lists, revokes and prunes them, exchanges a token for the credential
//! of an agent, and finds the agent to which a credential was issued.
//!
//! Invariants: only a token's hash is stored. A token is exchanged at most once, because each
//! exchange locks the token's row. A name has at most one open token (neither used, revoked nor
//! expired). A token replaces an agent in use (one that has not been removed) only if the token was
//! made for that purpose. The replacement is a single transaction, which voids the agent's previous
//! credential, ends its session and releases its leases.

use std::io;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::machine::secret::{Secret, SecretHash};
use crate::model::AgentId;
use crate::store::agents::sessions::{self, EndCause};
use crate::store::leases::{self, ReleaseScope};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::{Interval, Unsigned};
use crate::store::{Error, Locked, Tx, minute};

pub use crate::store::agents::new_enrolments::{AgentRequest, CreateError, Enrolment, Name, NameRefusal, create};

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

/// The key by which tokens are listed: when the token was made, the name of its agent, and its
/// identifier.
pub type ListKey = (DateTime<Utc>, String, String);

impl Token {
    pub fn key(&self) -> ListKey {
        (self.made_at, self.name.clone(), self.id.clone())
    }
}

/// At most `limit` open tokens after `after`, oldest first. If `all` is set, also ended tokens that
/// are still stored.
pub async fn list(
    conn: &mut PgConnection,
    all: bool,
    after: Option<&ListKey>,
    limit: i64,
) -> Result<Vec<Token>, Error> {
    let rows = sqlx::query!(
        r#"
        select encode(substring(token_hash for 5), 'hex') as "id!", agent_name, city, carrier, country, created_at, expires_at,
               used_at, revoked_at, replaces, expires_at <= now() as "expired!"
        from enrolments
        where ($1 or (used_at is null and revoked_at is null and expires_at > now()))
          and ($2::timestamptz is null
               or (created_at, agent_name, encode(substring(token_hash for 5), 'hex')) > ($2, $3, $4))
        order by created_at, agent_name, 1
        limit $5
        "#,
        all,
        after.map(|(made_at, ..)| *made_at),
        after.map(|(_, name, _)| name.as_str()),
        after.map(|(.., id)| id.as_str()),
        limit,
    );
    let tokens = rows.all(conn).await?.into_iter().map(|row| {
        let (state, ended_at) = stands(row.used_at, row.revoked_at, row.expired.then_some(row.expires_at));
        Token {
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
        }
    });
    Ok(tokens.collect())
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

#[derive(Debug, Clone)]
pub struct RedeemResult {
    pub agent: AgentId,
    /// The credential in clear text, returned only here.
    pub credential: String,
    pub name: String,
    pub city: String,
    pub carrier: String,
    /// The country's ISO 3166-1 alpha-2 code; empty when unknown.
    pub country: String,
    /// Whether this credential replaces an older credential of the agent, which is now void.
    pub replaced: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum RedeemError {
    /// No such token exists, or the token was deleted after its expiry.
    #[error("the enrolment token is unknown to this scheduler: make one with `landfall agents enrol`")]
    Unknown,
    #[error("the enrolment token for {name} was used at {}: make a new one with `landfall agents enrol`", minute(.at))]
    Used { name: String, at: DateTime<Utc> },
    #[error("the enrolment token for {name} was revoked at {}: make a new one with `landfall agents enrol`", minute(.at))]
    Revoked { name: String, at: DateTime<Utc> },
    #[error("the enrolment token for {name} expired at {}: make a new one with `landfall agents enrol`", minute(.at))]
    Expired { name: String, at: DateTime<Utc> },
    /// The name belongs to an agent in use, and the token may not replace this agent.
    #[error(
        "an agent called {0} is in use: `landfall agents enrol --name {0} --replace` makes a token that moves it to this machine"
    )]
    InUse(String),
    #[error("draw a credential")]
    Randomness(#[from] io::Error),
    #[error("redeem an enrolment token")]
    Store(#[from] Error),
}

/// Exchanges a token for an agent's credential.
pub async fn redeem(tx: &mut Tx<'_>, token: &str, max_crashes: u32) -> Result<RedeemResult, RedeemError> {
    let hash = SecretHash::of(token.trim());
    let row = sqlx::query!(
        r#"
        select agent_name, city, carrier, country, latitude, longitude, tags, replaces, used_at, revoked_at, expires_at,
               expires_at <= now() as "expired!"
        from enrolments where token_hash = $1
        for update
        "#,
        hash.as_bytes(),
    )
    .optional(tx)
    .await?
    .ok_or(RedeemError::Unknown)?;
    if let Some(at) = row.used_at {
        return Err(RedeemError::Used { name: row.agent_name, at });
    }
    if let Some(at) = row.revoked_at {
        return Err(RedeemError::Revoked { name: row.agent_name, at });
    }
    if row.expired {
        return Err(RedeemError::Expired { name: row.agent_name, at: row.expires_at });
    }
    let credential = Secret::generate()?;
    let credential_hash = credential.hash();
    let agent = sqlx::query!(
        r#"
        insert into agents (name, city, carrier, country, credential_hash, latitude, longitude, tags)
        values ($1, $2, $3, $4, $5, $6, $7, $8)
        on conflict (name) do update
        set city = excluded.city, carrier = excluded.carrier, country = excluded.country,
            latitude = excluded.latitude, longitude = excluded.longitude,
            tags = case when cardinality(excluded.tags) > 0 then excluded.tags else agents.tags end,
            former_credential_hash = agents.credential_hash, replaced_at = now(),
            credential_hash = excluded.credential_hash, enrolled_at = now(),
            draining_since = case when agents.removed_at is null then agents.draining_since end, removed_at = null
        where $9 or agents.removed_at is not null
        returning id, replaced_at is not null as "replaced!"
        "#,
        row.agent_name,
        row.city,
        row.carrier,
        row.country,
        credential_hash.as_bytes(),
        row.latitude,
        row.longitude,
        &row.tags,
        row.replaces,
    )
    .optional(tx)
    .await?
    .ok_or_else(|| RedeemError::InUse(row.agent_name.clone()))?;
    sqlx::query!("update enrolments set used_at = now() where token_hash = $1", hash.as_bytes()).run(tx).await?;
    let id = agent.id;
    if agent.replaced {
        sessions::close_active(tx, Locked::by(tx, id), EndCause::Replaced).await?;
        leases::release_of_ended_sessions(tx, ReleaseScope::Agent(id), max_crashes).await?;
    }
    Ok(RedeemResult {
        agent: id,
        credential: credential.reveal().to_owned(),
        name: row.agent_name,
        city: row.city,
        carrier: row.carrier,
        country: row.country,
        replaced: agent.replaced,
    })
}

/// The agent to which a credential was issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialHolder {
    pub agent: AgentId,
    pub name: String,
    pub removed_at: Option<DateTime<Utc>>,
    /// When another machine was enrolled under the agent's name; `None` while the credential is
    /// valid.
    pub replaced_at: Option<DateTime<Utc>>,
}

/// The agent to which this credential was issued, even if the agent has since been removed or
/// replaced.
pub async fn by_credential(
    conn: &mut PgConnection,
    credential: &SecretHash,
) -> Result<Option<CredentialHolder>, Error> {
    sqlx::query_as!(
        CredentialHolder,
        r#"
        select id as agent, name, removed_at, case when credential_hash <> $1 then replaced_at end as replaced_at
        from agents where credential_hash = $1 or former_credential_hash = $1
        "#,
        credential.as_bytes(),
    )
    .optional(conn)
    .await
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::store::agents;
    use crate::store::agents::new_enrolments::{AgentRequest, CreateError, Enrolment, Name, NameRefusal, create};
    use crate::store::fixtures::{self, Conn};

    const HOUR: Duration = Duration::from_secs(3600);

    async fn made_with_tags(conn: &mut PgConnection, name: &str) -> crate::store::agents::new_enrolments::Enrolment {
        let wanted = AgentRequest {
            city: "北京".into(),
            carrier: "电信".into(),
            tags: vec!["fast".into(), "spare".into()],
            ..wanted(Some(name))
        };
        fixtures::tx(conn, async |tx| create(tx, &[wanted]).await).await.expect("made").remove(0)
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn tokens_are_listed_by_how_they_stand_and_forgotten_in_the_end(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (open, used) = (made_with_tags(&mut conn, "open").await, made_with_tags(&mut conn, "used").await);
        let redeemed = redeem(&mut conn, used.token.reveal(), fixtures::MAX_CRASHES).await.expect("used");
        let tags: Vec<String> = sqlx::query_scalar("select tags from agents where id = $1")
            .bind(redeemed.agent.get())
            .fetch_one(&mut *conn)
            .await
            .expect("ask");
        assert_eq!(tags, ["fast", "spare"]);
        let revoked = made_with_tags(&mut conn, "revoked").await;
        assert!(!revoke(&mut conn, &revoked.id).await.expect("by its short name").before);
        made_with_tags(&mut conn, "expired").await;
        fixtures::execute(
            &mut conn,
            "update enrolments set expires_at = now() - interval '2 hours' where agent_name = 'expired'",
        )
        .await;
        let listed = list(&mut conn, false, None, 10).await.expect("list");
        assert_eq!((listed.len(), listed[0].id.as_str()), (1, open.id.as_str()));
        let mut states: Vec<(String, State)> = list(&mut conn, true, None, 10)
            .await
            .expect("list")
            .into_iter()
            .map(|token| (token.name, token.state))
            .collect();
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
        made_with_tags(&mut conn, "a").await;
        assert_eq!(revoke(&mut conn, "a").await.expect("open"), RevokedToken { name: "a".into(), before: false });
        assert_eq!(revoke(&mut conn, "a").await.expect("again"), RevokedToken { name: "a".into(), before: true });
        let token = made_with_tags(&mut conn, "a").await;
        fixtures::tx(&mut conn, async |tx| redeem(tx, token.token.reveal(), fixtures::MAX_CRASHES).await)
            .await
            .expect("used");
        let used = revoke(&mut conn, "a").await.expect_err("used");
        assert!(matches!(used, RevokeError::Used { .. }), "{used}");
        made_with_tags(&mut conn, "b").await;
        fixtures::execute(&mut conn, "update enrolments set expires_at = now()").await;
        let expired = revoke(&mut conn, "b").await.expect_err("expired");
        assert!(matches!(expired, RevokeError::Expired { .. }), "{expired}");
    }

    fn wanted(name: Option<&str>) -> AgentRequest {
        let formed = || Name::Formed("harbin-cernet".into());
        fixtures::agent_request(name.map_or_else(formed, |name| Name::Given(name.into())))
    }

    async fn made(tx: &mut Tx<'_>, name: Option<&str>) -> Enrolment {
        create(tx, &[wanted(name)]).await.expect("an enrolment").remove(0)
    }

    async fn to_replace(tx: &mut Tx<'_>, name: &str) -> Enrolment {
        let wanted = AgentRequest { replaces: true, ..wanted(Some(name)) };
        create(tx, &[wanted]).await.expect("an enrolment").remove(0)
    }

    async fn used(tx: &mut Tx<'_>, enrolment: &Enrolment) -> Result<RedeemResult, RedeemError> {
        redeem(tx, enrolment.token.reveal(), fixtures::MAX_CRASHES).await
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_taken_default_name_gets_a_number(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let first = made(&mut conn, None).await;
        assert_eq!(first.name, "harbin-cernet");
        used(&mut conn, &first).await.expect("redeemed");
        assert_eq!(made(&mut conn, None).await.name, "harbin-cernet-2");
        assert_eq!(made(&mut conn, None).await.name, "harbin-cernet-3");
        revoke(&mut conn, "harbin-cernet-2").await.expect("revoked");
        let several = [wanted(None), wanted(Some("harbin-cernet-4")), wanted(None)];
        let names = create(&mut conn, &several).await.expect("three");
        let names: Vec<&str> = names.iter().map(|made| made.name.as_str()).collect();
        assert_eq!(names, ["harbin-cernet-2", "harbin-cernet-4", "harbin-cernet-5"], "a revoked one is free again");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_name_that_is_in_use_or_has_a_token_is_refused(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        fixtures::agent(&mut conn, "a").await;
        let open = made(&mut conn, Some("b")).await;
        let all = [Some("a"), Some("b"), Some("c"), Some("c"), None].map(wanted);
        let refused = match create(&mut conn, &all).await.expect_err("refused") {
            CreateError::Refused(refused) => refused,
            other => panic!("{other}"),
        };
        let indices: Vec<usize> = refused.iter().map(|(index, _)| *index).collect();
        assert_eq!(indices, [0, 1, 3]);
        assert!(matches!(&refused[0].1, NameRefusal::InUse(name) if name == "a"));
        assert!(matches!(&refused[1].1, NameRefusal::Open { name, .. } if name == "b"));
        assert!(matches!(&refused[2].1, NameRefusal::Repeated(name) if name == "c"));
        assert_eq!(open_tokens(&mut conn).await.expect("count"), 1, "all or none");
        fixtures::execute(&mut conn, "update agents set removed_at = now()").await;
        assert!(!made(&mut conn, Some("a")).await.in_use, "a removed one is enrolled again under its name");
        used(&mut conn, &open).await.expect("redeemed");
        assert!(to_replace(&mut conn, "b").await.in_use);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn of_two_uses_at_once_exactly_one_wins(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("a connection");
        let token = fixtures::tx(&mut conn, async |tx| made(tx, Some("a")).await).await;
        let attempt = || async {
            let mut tx = fixtures::begin(&pool).await;
            let redeemed = used(&mut tx, &token).await;
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
    async fn stale_tokens_say_what_is_wrong_with_them(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let token = made(&mut conn, Some("a")).await;
        fixtures::execute(&mut conn, "update enrolments set expires_at = now()").await;
        let expired = used(&mut conn, &token).await.expect_err("expired");
        assert!(matches!(expired, RedeemError::Expired { .. }), "{expired}");
        let token = made(&mut conn, Some("a")).await;
        revoke(&mut conn, "a").await.expect("revoked");
        let revoked = used(&mut conn, &token).await.expect_err("revoked");
        assert!(matches!(revoked, RedeemError::Revoked { .. }), "{revoked}");
        let unknown = redeem(&mut conn, "made up", 5).await.expect_err("unknown");
        assert!(matches!(unknown, RedeemError::Unknown), "{unknown}");
        assert!(agents::list(&mut conn).await.expect("agents").is_empty());
        let token = made(&mut conn, Some("a")).await;
        fixtures::agent(&mut conn, "a").await;
        let in_use = used(&mut conn, &token).await.expect_err("in use");
        assert!(matches!(in_use, RedeemError::InUse(_)), "{in_use}");
        assert!(is_open(&mut conn, "a").await.expect("look"), "and is not spent");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_replaced_agent_loses_session_and_leases_and_nobody_is_blamed(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let first = made(&mut conn, Some("a")).await;
        let first = used(&mut conn, &first).await.expect("redeemed");
        assert!(!first.replaced);
        let session = fixtures::session(&mut conn, first.agent).await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, first.agent).await;
        assert_eq!(fixtures::grant(&mut conn, first.agent, session).await.len(), 1);

        let second = to_replace(&mut conn, "a").await;
        assert!(fixtures::renew(&mut conn, session).await, "until it is used");
        let second = used(&mut conn, &second).await.expect("redeemed");
        assert_eq!((first.agent, second.replaced), (second.agent, true));
        assert!(!fixtures::renew(&mut conn, session).await);
        assert_eq!(sessions::end_cause(&mut conn, session).await.expect("look"), Some(EndCause::Replaced));
        assert_eq!(fixtures::state(&mut conn, task).await, "assigned");
        let crashes: i32 = fixtures::scalar(&mut conn, "select crashes from tasks").await;
        assert_eq!(crashes, 0);
        let by = |credential: &str| SecretHash::of(credential);
        let old = agents::by_credential(&mut conn, &by(&first.credential)).await.expect("a lookup").expect("known");
        let new = agents::by_credential(&mut conn, &by(&second.credential)).await.expect("a lookup").expect("known");
        assert_eq!((old.agent, new.agent), (first.agent, first.agent));
        assert!(old.replaced_at.is_some() && new.replaced_at.is_none());
        let opened = fixtures::session(&mut conn, first.agent).await;
        let again = leases::grant(&mut conn, first.agent, opened).await.expect("grant");
        assert_eq!((again[0].task, again[0].token.get()), (task, 2));
    }
}
