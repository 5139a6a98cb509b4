//! Rows that the database's clock dates in the future, because it was set back.
//!
//! What waits by Postgres' clock would otherwise wait longer by as much as the clock was set back: for
//! example the leases of an agent that died before, or the roles of a scheduler. A clock that is
//! set forwards needs nothing of this: every term ends, and the next leader of the role reap extends the
//! sessions.

use std::time::Duration;

use sqlx::PgConnection;

use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::Interval;
use crate::store::{Error, Tx};

/// How far the clock is behind the newest renewal of a scheduler; `None` if it is not.
pub async fn set_back(conn: &mut PgConnection) -> Result<Option<Duration>, Error> {
    let by = sqlx::query_scalar!(
        r#"select max(renewed_at) - clock_timestamp() as "by: Interval" from schedulers where renewed_at > clock_timestamp()"#,
    );
    Ok(by.one(conn).await?.map(Duration::from))
}

/// Gives rows that begin in the future the present as their beginning, and the time that they had
/// left. Skips rows that another transaction has locked, because it renews or ends them. `lifetime`
/// is that of a session after its renewal.
pub async fn follow(tx: &mut Tx<'_>, lifetime: Duration) -> Result<(), Error> {
    // A new leader of the role reap may have extended a session of a dead agent while the clock was
    // ahead. Such a session was not renewed in the future, and would block its agent's next process.
    sqlx::query!(
        r#"
        with ahead as materialized (
            select id from sessions
            where state = 'active' and (renewed_at > clock_timestamp() or expires_at > clock_timestamp() + $1::interval)
            order by id for update skip locked
        )
        update sessions s
        set expires_at = least(s.expires_at, now() + $1::interval), renewed_at = least(s.renewed_at, now())
        from ahead where s.id = ahead.id
        "#,
        Interval(lifetime),
    )
    .run(tx)
    .await?;
    sqlx::query!(
        r#"
        with ahead as materialized (
            select task_id, token from leases where state = 'active' and granted_at > clock_timestamp()
            order by task_id for update skip locked
        )
        update leases l set due_at = l.due_at - (l.granted_at - now()), granted_at = now()
        from ahead where l.task_id = ahead.task_id and l.token = ahead.token
        "#,
    )
    .run(tx)
    .await?;
    // A failed measurement counts only if it came after the site began to wait.
    sqlx::query!(
        r#"
        with ahead as materialized (
            select id from tasks where state = 'measuring' and state_since > clock_timestamp()
            order by id for update skip locked
        )
        update tasks t set state_since = now() from ahead where t.id = ahead.id
        "#,
    )
    .run(tx)
    .await?;
    sqlx::query!(
        r#"
        with ahead as materialized (
            select task_id from task_holds where since > clock_timestamp() order by task_id for update skip locked
        )
        update task_holds h set until = h.until - (h.since - now()), since = now()
        from ahead where h.task_id = ahead.task_id
        "#,
    )
    .run(tx)
    .await?;
    sqlx::query!(
        r#"
        with ahead as materialized (
            select id from measurement_orders where created_at > clock_timestamp() order by id for update skip locked
        )
        update measurement_orders o set expires_at = o.expires_at - (o.created_at - now()), created_at = now()
        from ahead where o.id = ahead.id
        "#,
    )
    .run(tx)
    .await?;
    sqlx::query!(
        r#"
        with ahead as materialized (
            select id from schedulers where renewed_at > clock_timestamp() order by id for update skip locked
        )
        update schedulers s set expires_at = s.expires_at - (s.renewed_at - now()), renewed_at = now()
        from ahead where s.id = ahead.id
        "#,
    )
    .run(tx)
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixtures::{self, Conn, LIFETIME};
    use crate::store::schedulers;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_waits_gets_no_more_time_than_it_had_before_the_clock_was_set_back(mut conn: Conn) {
        let life = Duration::from_secs(10);
        schedulers::join(&mut conn, "http://a", "1.0.0", life, None).await.expect("join");
        fixtures::leased(&mut conn, "a").await;
        for sql in [
            "insert into measurement_orders (prober_id, site_id, expires_at)
             select min(a.id), min(s.id), now() + interval '1 minute' from agents a, sites s",
            "insert into task_holds (task_id, batch_id, site_id, cause, until)
             select id, batch_id, site_id, 'pause', now() + interval '1 minute' from tasks",
            "update tasks set state = 'measuring', agent_id = null",
        ] {
            fixtures::execute(&mut conn, sql).await;
        }
        assert_eq!(set_back(&mut conn).await.expect("ask"), None);
        // As if the clock had been set back by a day.
        for sql in [
            "update schedulers set renewed_at = renewed_at + interval '1 day', expires_at = expires_at + interval '1 day'",
            "update sessions set renewed_at = renewed_at + interval '1 day', expires_at = expires_at + interval '1 day'",
            "update leases set granted_at = granted_at + interval '1 day', due_at = due_at + interval '1 day'",
            "update measurement_orders
             set created_at = created_at + interval '1 day', expires_at = expires_at + interval '1 day'",
            "update task_holds set since = since + interval '1 day', until = until + interval '1 day'",
            "update tasks set state_since = state_since + interval '1 day'",
        ] {
            fixtures::execute(&mut conn, sql).await;
        }
        let by = set_back(&mut conn).await.expect("ask").expect("it was set back");
        assert!((86_300..=86_400).contains(&by.as_secs()), "{by:?}");
        fixtures::tx(&mut conn, async |tx: &mut Tx<'_>| follow(tx, LIFETIME).await).await.expect("follow");
        assert_eq!(set_back(&mut conn).await.expect("ask"), None);
        let late: i64 = fixtures::scalar(
            &mut conn,
            "select count(*) from (
                 select expires_at as until, renewed_at as since from schedulers
                 union all select expires_at, renewed_at from sessions
                 union all select due_at, granted_at from leases where state = 'active'
                 union all select expires_at, created_at from measurement_orders
                 union all select until, since from task_holds
                 union all select state_since, state_since from tasks
             ) waiting where since > clock_timestamp() or until > clock_timestamp() + interval '1 hour'",
        )
        .await;
        assert_eq!(late, 0);
        let kept: bool = fixtures::scalar(
            &mut conn,
            "select expires_at > clock_timestamp() + interval '30 s' from measurement_orders",
        )
        .await;
        assert!(kept, "nothing loses time either");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_session_that_was_only_extended_while_the_clock_was_ahead_ends_soon(mut conn: Conn) {
        fixtures::crawler(&mut conn, "a").await;
        fixtures::execute(&mut conn, "update sessions set expires_at = now() + interval '1 day'").await;
        fixtures::tx(&mut conn, async |tx: &mut Tx<'_>| follow(tx, LIFETIME).await).await.expect("follow");
        let left = "select extract(epoch from expires_at - now())::float8 from sessions";
        let left: f64 = fixtures::scalar(&mut conn, left).await;
        assert!((1.0..=LIFETIME.as_secs_f64()).contains(&left), "{left} s");
    }
}
