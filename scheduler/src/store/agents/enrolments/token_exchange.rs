//! Exchanges a one-time token for the credential of an agent, and refuses tokens that are unknown,
//! used, revoked or expired.

use std::io;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::machine::secret::{Secret, SecretHash};
use crate::model::AgentId;
use crate::store::agents::sessions::{self, EndCause};
use crate::store::rows::{Rows, Statement};
use crate::store::{Error, leases, minute};

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

/// Exchanges a token for an agent's credential. Run in a transaction.
pub async fn redeem(conn: &mut PgConnection, token: &str, max_crashes: u32) -> Result<RedeemResult, RedeemError> {
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
    .optional(conn)
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
    .optional(conn)
    .await?
    .ok_or_else(|| RedeemError::InUse(row.agent_name.clone()))?;
    sqlx::query!("update enrolments set used_at = now() where token_hash = $1", hash.as_bytes()).run(conn).await?;
    let id = agent.id;
    if agent.replaced {
        sessions::close_active(conn, id, EndCause::Replaced).await?;
        leases::release_of_ended_sessions(conn, max_crashes).await?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use sqlx::PgPool;

    use crate::store::agents;
    use crate::store::agents::enrolments::agent_request::{AgentRequest, Name};
    use crate::store::agents::enrolments::names::NameRefusal;
    use crate::store::agents::enrolments::token_creation::{CreateError, Enrolment, create};
    use crate::store::agents::enrolments::tokens::{is_open, open_tokens, revoke};
    use crate::store::fixtures::{self, Conn};

    fn wanted(name: Option<&str>) -> AgentRequest {
        AgentRequest {
            name: name.map_or_else(|| Name::Formed("harbin-cernet".into()), |name| Name::Given(name.into())),
            city: "Harbin".into(),
            carrier: "CERNET".into(),
            country: "CN".into(),
            position: None,
            tags: Vec::new(),
            valid_for: Duration::from_secs(60),
            replaces: false,
        }
    }

    async fn made(conn: &mut PgConnection, name: Option<&str>) -> Enrolment {
        create(conn, &[wanted(name)]).await.expect("an enrolment").remove(0)
    }

    async fn to_replace(conn: &mut PgConnection, name: &str) -> Enrolment {
        let wanted = AgentRequest { replaces: true, ..wanted(Some(name)) };
        create(conn, &[wanted]).await.expect("an enrolment").remove(0)
    }

    async fn used(conn: &mut PgConnection, enrolment: &Enrolment) -> Result<RedeemResult, RedeemError> {
        redeem(conn, enrolment.token.reveal(), fixtures::MAX_CRASHES).await
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_taken_default_name_gets_a_number(mut conn: Conn) {
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
        let token = made(&mut pool.acquire().await.expect("a connection"), Some("a")).await;
        let attempt = || async {
            let mut tx = pool.begin().await.expect("a transaction");
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
        let first = made(&mut conn, Some("a")).await;
        let first = used(&mut conn, &first).await.expect("redeemed");
        assert!(!first.replaced);
        let session = fixtures::session(&mut conn, first.agent).await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, first.agent).await;
        assert_eq!(fixtures::grant(&mut conn, first.agent, session).await.len(), 1);

        let second = to_replace(&mut conn, "a").await;
        assert!(
            sessions::renew(&mut conn, session, fixtures::LIFETIME, sessions::MachineReport::default())
                .await
                .expect("renew"),
            "until it is used"
        );
        let second = used(&mut conn, &second).await.expect("redeemed");
        assert_eq!((first.agent, second.replaced), (second.agent, true));
        assert!(
            !sessions::renew(&mut conn, session, fixtures::LIFETIME, sessions::MachineReport::default())
                .await
                .expect("renew")
        );
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
