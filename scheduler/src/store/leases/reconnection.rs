//! Binds the leases that a reconnected agent still holds to its new session.

use sqlx::PgConnection;

use crate::model::{AgentId, LeaseToken, SessionId, TaskId};
use crate::store::Error;
use crate::store::rows::Rows;

/// Binds to an agent's new session the leases that the agent reports as held. Rebinds and returns
/// only leases that are active, belong to the agent and match the reported token.
pub async fn rebind(
    conn: &mut PgConnection,
    agent: AgentId,
    session: SessionId,
    held: &[(TaskId, LeaseToken)],
) -> Result<Vec<(TaskId, LeaseToken)>, Error> {
    let tasks: Vec<i64> = held.iter().map(|(task, _)| task.get()).collect();
    let tokens: Vec<i64> = held.iter().map(|(_, token)| token.get()).collect();
    let rows = sqlx::query!(
        r#"
        update leases l set session_id = $2
        from unnest($3::bigint[], $4::bigint[]) as held (task_id, token)
        where l.task_id = held.task_id and l.token = held.token and l.agent_id = $1 and l.state = 'active'
        returning l.task_id, l.token
        "#,
        agent.get(),
        session.get(),
        &tasks,
        &tokens,
    )
    .all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.task_id, row.token)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::agents::sessions::{self, Registration};
    use crate::store::fixtures::{self, Conn};
    use crate::store::leases::granting::grant;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_reconnecting_agent_keeps_what_it_holds_and_loses_what_it_forgot(mut conn: Conn) {
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        fixtures::queue(&mut conn, batch, agent, &["a.cn", "b.cn"]).await;
        let grants = grant(&mut conn, agent, session).await.expect("grant");
        let forged = (grants[1].task, LeaseToken::new(7));
        let registration =
            Registration { held: vec![(grants[0].task, grants[0].token), forged], ..fixtures::registration() };
        let opened = sessions::open(&mut conn, agent, &registration, fixtures::TERMS).await.expect("open");
        assert_eq!(opened.kept, [(grants[0].task, grants[0].token)]);
        assert_eq!(fixtures::state(&mut conn, grants[0].task).await, "leased");
        assert_eq!(fixtures::state(&mut conn, grants[1].task).await, "assigned");
        let again = grant(&mut conn, agent, opened.session).await.expect("grant");
        assert_eq!(
            again.iter().map(|grant| (grant.task, grant.token.get())).collect::<Vec<_>>(),
            [(grants[1].task, 2)]
        );
    }
}
