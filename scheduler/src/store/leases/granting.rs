//! Grants leases: chooses the assigned tasks that get the free slots of an agent, and raises their
//! tokens. Also lists active leases, binds them to the new session of an agent that reconnects, and
//! reads how many pages a site's last crawl fetched.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, CrawlPolicy, LeaseToken, SessionId, SiteId, TaskId};
use crate::store::rows_and_errors::Rows;
use crate::store::{Error, Locked, Tx};

/// A new lease, with all data that the agent needs to crawl the site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub task: TaskId,
    pub token: LeaseToken,
    pub site: SiteId,
    pub name: String,
    pub origin: Option<String>,
    pub policy: CrawlPolicy,
}

/// An agent's session and its number of free slots.
#[derive(Debug, Clone, Copy)]
pub struct FreeSlots<Agent = AgentId> {
    pub agent: Agent,
    pub session: SessionId,
    pub slots: i64,
}

/// Grants leases on the agent's assigned tasks, at most one per free slot. Grants nothing to a
/// session that is no longer active, nor to a draining or paused agent. The caller must commit
/// before it sends the grants.
pub async fn grant(tx: &mut Tx<'_>, agent: AgentId, session: SessionId) -> Result<Vec<Grant>, Error> {
    let locked = lock(tx, &[FreeSlots { agent, session, slots: 0 }]).await?;
    let Some(&(agent, capacity)) = locked.get(&session) else { return Ok(Vec::new()) };
    let active = sqlx::query_scalar!(
        r#"select count(*) as "count!" from leases where agent_id = $1 and state = 'active'"#,
        agent.get(),
    )
    .one(tx)
    .await?;
    let granted = choose(tx, &[FreeSlots { agent, session, slots: i64::from(capacity) - active }]).await?;
    Ok(granted.into_iter().map(|(_, grant)| grant).collect())
}

/// Like [`grant`], but for several agents whose free slots are known. The free slots are not
/// counted again: the given numbers are right, because only an agent's own session grants leases to
/// the agent. For thousands of agents, counting would be most of the work. Returns grants in the
/// order of `asking`. Each agent occurs once in `asking`.
pub async fn fill(tx: &mut Tx<'_>, asking: &[FreeSlots<Locked<AgentId>>]) -> Result<Vec<Vec<Grant>>, Error> {
    let mut granted: HashMap<AgentId, Vec<Grant>> = HashMap::new();
    for (agent, grant) in choose(tx, asking).await? {
        granted.entry(agent).or_default().push(grant);
    }
    Ok(asking.iter().map(|free| granted.remove(&*free.agent).unwrap_or_default()).collect())
}

/// Locks the agents' rows until the transaction ends, so that two grants cannot use the same free
/// slot. Returns the agents and their capacities by session. Omits agents that are draining or paused,
/// and sessions that have ended: an agent's former and new session may ask in one transaction. Lock
/// order: agents before tasks.
pub async fn lock(tx: &mut Tx<'_>, asking: &[FreeSlots]) -> Result<HashMap<SessionId, (Locked<AgentId>, u32)>, Error> {
    if asking.is_empty() {
        return Ok(HashMap::new());
    }
    let (agents, sessions): (Vec<i64>, Vec<i64>) =
        asking.iter().map(|free| (free.agent.get(), free.session.get())).unzip();
    let rows = sqlx::query!(
        r#"
        select a.id, a.capacity, s.id as session_id from agents a
        join unnest($1::bigint[], $2::bigint[]) as asking (agent_id, session_id) on asking.agent_id = a.id
        join sessions s on s.agent_id = a.id and s.id = asking.session_id
        where s.state = 'active' and s.paused is null and a.draining_since is null
        order by a.id
        -- This lock permits concurrent assignments to the agent, because these lock only the key.
        for no key update of a for share of s
        "#,
        &agents,
        &sessions,
    )
    .all(tx)
    .await?;
    Ok(rows.into_iter().map(|row| (row.session_id, (Locked::by(tx, row.id), row.capacity.0))).collect())
}

async fn choose(tx: &mut Tx<'_>, free: &[FreeSlots<Locked<AgentId>>]) -> Result<Vec<(AgentId, Grant)>, Error> {
    let free: Vec<&FreeSlots<_>> = free.iter().filter(|free| free.slots > 0).collect();
    if free.is_empty() {
        return Ok(Vec::new());
    }
    let agents: Vec<i64> = free.iter().map(|free| free.agent.get()).collect();
    let sessions: Vec<i64> = free.iter().map(|free| free.session.get()).collect();
    let rows = sqlx::query!(
        r#"
        with chosen as (
            -- The token is higher than all tokens granted in earlier histories, because the database
            -- does not contain all of these.
            select t.id, t.site_id, t.batch_id, free.agent_id, free.session_id,
                   greatest(t.token, (select max(floor) from histories)) + 1 as token
            from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as free (agent_id, session_id, slots)
            -- Without the array, the planner expects a limit from a column to return a tenth of all
            -- waiting tasks. It then joins whole tables.
            cross join lateral unnest(array(
                select w from tasks w
                where w.state = 'assigned' and w.agent_id = free.agent_id
                  -- No task of a batch that is being cancelled or removed. The array is computed once.
                  and w.batch_id <> all (array(select batch_id from changes where finished_at is null and kind <> 'retry'))
                  -- `offset 0` forces a lookup by index for each task. A join would read every
                  -- active lease for every task.
                  and not exists (select from leases l where l.site_id = w.site_id and l.state = 'active' offset 0)
                  -- A lease locks the key of its site. A site that somebody has locked waits alone.
                  and exists (select from sites s where s.id = w.site_id for key share skip locked)
                -- Tasks whose lease was lost come first, because they have waited before.
                order by w.token = 0, w.id
                limit free.slots
                for update of w skip locked
            )) t
        ), granted as (
            insert into leases (task_id, token, site_id, agent_id, session_id, due_at)
            select id, token, site_id, agent_id, session_id,
                   now() + make_interval(secs => (select b.max_duration_ms / 1000.0 from batches b where b.id = chosen.batch_id))
            from chosen
            -- Two grants that want the same sites wait for each other only in one order.
            order by site_id
            -- Another batch's task of the same site may have got a lease in the meantime. This task
            -- then stays assigned.
            on conflict (site_id) where state = 'active' do nothing
            returning task_id, token, agent_id
        ), moved as (
            update tasks t set state = 'leased', token = g.token, reason = null, state_since = now()
            from granted g where t.id = g.task_id
            returning t.id, t.batch_id, t.site_id, t.token, g.agent_id
        )
        select m.id, m.token, m.agent_id, s.id as site_id, s.name, s.origin, b.policy
        from moved m
        join sites s on s.id = m.site_id
        join batches b on b.id = m.batch_id
        order by m.id
        "#,
        &agents,
        &sessions,
        &free.iter().map(|free| free.slots).collect::<Vec<i64>>(),
    )
    .all(tx)
    .await?;
    let granted = rows.into_iter().map(|row| {
        let grant = Grant {
            task: row.id,
            token: row.token,
            site: row.site_id,
            name: row.name,
            origin: row.origin,
            policy: row.policy,
        };
        (row.agent_id, grant)
    });
    Ok(granted.collect())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveLease {
    pub site: String,
    pub batch: String,
    pub token: LeaseToken,
    pub granted_at: DateTime<Utc>,
}

/// An agent's active leases, oldest first.
pub async fn held(conn: &mut PgConnection, agent: AgentId) -> Result<Vec<ActiveLease>, Error> {
    let held = sqlx::query_as!(
        ActiveLease,
        r#"
        select s.name as site, b.name as batch, l.token, l.granted_at
        from leases l
        join tasks t on t.id = l.task_id
        join sites s on s.id = l.site_id
        join batches b on b.id = t.batch_id
        where l.agent_id = $1 and l.state = 'active'
        order by l.granted_at, l.task_id
        "#,
        agent.get(),
    );
    held.all(conn).await
}

/// The agent to which this lease was granted; `None` if the lease was never granted.
pub async fn holder(conn: &mut PgConnection, task: TaskId, token: LeaseToken) -> Result<Option<AgentId>, Error> {
    let agent =
        sqlx::query_scalar!("select agent_id from leases where task_id = $1 and token = $2", task.get(), token.get(),)
            .optional(conn)
            .await?;
    Ok(agent)
}

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

/// Number of pages that the last successful crawl of each task's site fetched. A task is absent if
/// no crawl of its site was successful.
pub async fn last_pages(conn: &mut PgConnection, tasks: &[TaskId]) -> Result<HashMap<TaskId, u32>, Error> {
    let rows = sqlx::query!(
        r#"
        select t.id, last.pages
        from tasks t
        cross join lateral (
            select o.pages from tasks other join outcomes o on o.task_id = other.id
            where other.site_id = t.site_id and o.kind in ('complete', 'truncated')
            order by o.accepted_at desc
            limit 1
        ) last
        where t.id = any($1)
        "#,
        tasks as _,
    )
    .all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.pages.0)).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::agents::sessions::{self, Registration};
    use crate::store::agents::{self};
    use crate::store::assignments;
    use crate::store::fixtures::{self, Conn};
    use crate::store::leases::ending::release;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn grants_stop_at_the_agents_capacity_and_tokens_start_at_one(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        fixtures::queue(&mut conn, batch, agent, &["a.cn", "b.cn", "c.cn"]).await;
        let grants = grant(&mut conn, agent, session).await.expect("grant");
        assert_eq!(grants.iter().map(|grant| grant.token.get()).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(grants[0].name, "a.cn");
        assert_eq!(grants[0].policy.max_pages, 10);
        assert!(grant(&mut conn, agent, session).await.expect("grant").is_empty(), "no slot is free");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_agent_that_has_paused_is_granted_nothing_until_it_says_otherwise_or_comes_back(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        fixtures::assigned(&mut conn, batch, site, agent).await;
        assert!(sessions::pause(&mut conn, session, Some("the disk is full")).await.expect("pause"));
        assert!(!sessions::pause(&mut conn, session, Some("the disk is full")).await.expect("pause"), "no news");
        let waiting = sessions::waiting(&mut conn, agent, session).await.expect("look");
        assert_eq!(
            waiting,
            Some(sessions::PendingMessages {
                orders: false,
                revocations: false,
                preemptions: false,
                tasks: false,
                free: 2
            })
        );
        assert!(grant(&mut conn, agent, session).await.expect("grant").is_empty());
        assert!(crate::store::assignments::agents_and_loads::available(&mut conn).await.expect("look").is_empty());
        let shown = agents::show(&mut conn, "a").await.expect("look").expect("the agent");
        assert_eq!(shown.paused.as_deref(), Some("the disk is full"));
        let mut tx = Tx::on(&mut conn).await.expect("begin");
        assert_eq!(
            assignments::unassign(&mut tx, assignments::UnassignScope::Unavailable(Duration::from_secs(5)), 10)
                .await
                .expect("withdraw"),
            1,
            "another may take it"
        );
        tx.rollback().await.expect("roll back");

        assert!(sessions::pause(&mut conn, session, None).await.expect("go on"));
        assert_eq!(
            assignments::unassign(&mut conn, assignments::UnassignScope::Unavailable(Duration::from_secs(5)), 10)
                .await
                .expect("withdraw"),
            0
        );
        assert!(sessions::pause(&mut conn, session, Some("the disk is full")).await.expect("pause"));
        let session = fixtures::session(&mut conn, agent).await;
        assert_eq!(grant(&mut conn, agent, session).await.expect("grant").len(), 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_whose_lease_was_lost_goes_before_those_that_never_had_one(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let tasks = fixtures::queue(&mut conn, batch, agent, &["a.cn", "b.cn", "c.cn", "d.cn"]).await;
        let first = grant(&mut conn, agent, session).await.expect("grant");
        assert_eq!(first.iter().map(|grant| grant.task).collect::<Vec<_>>(), tasks[..2]);
        let lost = &first[1];
        assert!(release(&mut conn, agent, lost.task, lost.token, None, fixtures::MAX_CRASHES).await.expect("release"));
        let next = grant(&mut conn, agent, session).await.expect("grant");
        let next: Vec<(TaskId, i64)> = next.iter().map(|grant| (grant.task, grant.token.get())).collect();
        assert_eq!(next, [(tasks[1], 2)], "one slot is free");
    }

    /// Locks those of the agents to which leases may be granted.
    async fn locked(tx: &mut Tx<'_>, asking: &[(AgentId, SessionId)], slots: i64) -> Vec<FreeSlots<Locked<AgentId>>> {
        let asking = asking.iter().map(|&(agent, session)| FreeSlots { agent, session, slots });
        let asking: Vec<FreeSlots> = asking.collect();
        let locked = lock(tx, &asking).await.expect("lock");
        let served = asking.iter().filter_map(|&FreeSlots { session, slots, .. }| {
            let (agent, _) = *locked.get(&session)?;
            Some(FreeSlots { agent, session, slots })
        });
        served.collect()
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_former_session_gets_nothing_although_the_new_one_asks_in_the_same_transaction(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (agent, former) = fixtures::crawler(&mut conn, "a").await;
        let new = fixtures::session(&mut conn, agent).await;
        let served = locked(&mut conn, &[(agent, former), (agent, new)], 1).await;
        assert_eq!(served.iter().map(|free| free.session).collect::<Vec<_>>(), [new]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn slots_that_are_known_to_be_free_are_filled_without_counting_them(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let filled = async |tx: &mut Tx<'_>, asking: &[(AgentId, SessionId)], slots| {
            let served = locked(tx, asking, slots).await;
            let granted = fill(tx, &served).await.expect("fill");
            let named = granted.iter().map(|grants| grants.iter().map(|grant| grant.name.clone()).collect());
            let refused = asking.len() - served.len();
            named.chain(std::iter::repeat_n(Vec::new(), refused)).collect::<Vec<Vec<_>>>()
        };
        let nothing: [&[&str]; 1] = [&[]];
        assert_eq!(filled(&mut conn, &[(agent, session)], 1).await, nothing, "nothing is assigned to it");
        fixtures::queue(&mut conn, batch, agent, &["a.cn", "b.cn", "c.cn"]).await;
        let (other, others) = fixtures::crawler(&mut conn, "b").await;
        fixtures::queue(&mut conn, batch, other, &["d.cn", "e.cn"]).await;
        assert_eq!(filled(&mut conn, &[(agent, session)], 0).await, nothing);
        let both = [(other, others), (agent, session)];
        assert_eq!(filled(&mut conn, &both, 1).await, [["d.cn"], ["a.cn"]], "each its own, in the order asked");
        assert!(sessions::pause(&mut conn, session, Some("the disk is full")).await.expect("pause"));
        assert_eq!(filled(&mut conn, &both, 1).await, [&["e.cn"][..], &[]], "one of them has paused");
        let new = fixtures::session(&mut conn, agent).await;
        assert_eq!(filled(&mut conn, &[(agent, session)], 1).await, nothing, "superseded");
        assert_eq!(filled(&mut conn, &[(agent, new)], 1).await, [["a.cn"]], "it has forgotten it, and it goes first");
        assert_eq!(filled(&mut conn, &[(agent, new)], 2).await, [["b.cn", "c.cn"]]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn one_site_at_two_agents_is_leased_once(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let site = fixtures::site(&mut conn, "a.cn").await;
        let mut asking = Vec::new();
        for name in ["a", "b"] {
            let agent = fixtures::agent(&mut conn, name).await;
            let batch = fixtures::batch(&mut conn, name, "random").await;
            fixtures::assigned(&mut conn, batch, site, agent).await;
            asking.push((agent, fixtures::session(&mut conn, agent).await));
        }
        let asking = locked(&mut conn, &asking, 2).await;
        let granted = fill(&mut conn, &asking).await.expect("fill");
        assert_eq!(granted.iter().map(Vec::len).sum::<usize>(), 1, "{granted:?}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn one_site_is_leased_once_across_batches(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        for name in ["spring", "autumn"] {
            let batch = fixtures::batch(&mut conn, name, "random").await;
            fixtures::assigned(&mut conn, batch, site, agent).await;
        }
        assert_eq!(grant(&mut conn, agent, session).await.expect("grant").len(), 1);
        assert_eq!(grant(&mut conn, agent, session).await.expect("grant").len(), 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_waits_for_an_agent_is_what_it_would_be_given(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let waiting = |tasks, free| {
            Some(sessions::PendingMessages { orders: false, revocations: false, preemptions: false, tasks, free })
        };
        let mut seen = Vec::new();
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        for host in ["a.cn", "b.cn", "c.cn"] {
            seen.push(sessions::waiting(&mut conn, agent, session).await.expect("look"));
            let site = fixtures::site(&mut conn, host).await;
            fixtures::assigned(&mut conn, batch, site, agent).await;
        }
        grant(&mut conn, agent, session).await.expect("grant");
        seen.push(sessions::waiting(&mut conn, agent, session).await.expect("look"));
        assert_eq!(
            seen,
            [waiting(false, 2), waiting(true, 2), waiting(true, 2), waiting(true, 0)],
            "both slots are taken at last"
        );
        fixtures::session(&mut conn, agent).await;
        assert_eq!(sessions::waiting(&mut conn, agent, session).await.expect("look"), None, "superseded");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_session_that_has_ended_is_granted_nothing(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (agent, old) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        fixtures::assigned(&mut conn, batch, site, agent).await;
        let new = fixtures::session(&mut conn, agent).await;
        assert!(grant(&mut conn, agent, old).await.expect("grant").is_empty());
        assert_eq!(grant(&mut conn, agent, new).await.expect("grant").len(), 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_reconnecting_agent_keeps_what_it_holds_and_loses_what_it_forgot(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
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
