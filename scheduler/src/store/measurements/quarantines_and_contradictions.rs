//! Quarantines: agents whose measurements are ignored. Contradictions: crawls whose observed round
//! trip does not agree with the round trip known when the agent was chosen.
//!
//! This file also stores the alarm, which is raised when too many landmarks are not trusted.
//!
//! Invariants: an agent has at most one open quarantine, and there is at most one open alarm. A
//! quarantined agent's measurements stay stored, so that the agent can be judged again. Readers of
//! measurements omit the measurements of quarantined agents.
//!
//! After enough contradictions in a row, the site's measurements are marked as doubtful, so that
//! the site is measured again.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use sqlx::PgConnection;

use crate::gnp::trust::Kind;
use crate::model::{AgentId, Rtt, SiteId, TaskId};
use crate::store::Error;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::Interval;
use crate::strategy::learned_distances::{ENOUGH, PAUSE, weigh};

/// An open quarantine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantine {
    pub agent: AgentId,
    pub name: String,
    pub evidence: Kind,
    /// The reason, as operators see it.
    pub reason: String,
}

/// The open quarantines, ordered by the agents' identifiers.
pub async fn open(conn: &mut PgConnection) -> Result<Vec<Quarantine>, Error> {
    sqlx::query_as!(
        Quarantine,
        r#"
        select q.agent_id as agent, a.name, q.evidence, q.reason
        from quarantines q join agents a on a.id = q.agent_id
        where q.released_at is null
        order by q.agent_id
        "#,
    )
    .all(conn)
    .await
}

/// Opens a quarantine, or updates the reason of the open one. Returns `true` if the quarantine is
/// new.
pub async fn hold(conn: &mut PgConnection, agent: AgentId, evidence: Kind, reason: &str) -> Result<bool, Error> {
    sqlx::query_scalar!(
        r#"
        insert into quarantines (agent_id, evidence, reason) values ($1, $2, $3)
        on conflict (agent_id) where released_at is null do update
        set evidence = excluded.evidence, reason = excluded.reason, consistent = 0, judged_at = now()
        -- `xmax` is 0 for an inserted row, and not 0 for an updated row.
        returning (xmax = 0) as "new!"
        "#,
        agent.get(),
        evidence,
        reason,
    )
    .one(conn)
    .await
}

/// Counts a judgement that found the agent consistent. The judgement counts only if the agent has
/// measured a target since the last judgement that counted. The target must be a site if the
/// quarantine's evidence is about sites, otherwise another agent. Releases the agent after `enough`
/// judgements in a row that found the agent consistent. Returns `true` if the agent was released.
pub async fn found_consistent(conn: &mut PgConnection, agent: AgentId, enough: i32) -> Result<bool, Error> {
    let released = sqlx::query_scalar!(
        r#"
        update quarantines
        set consistent = consistent + 1, judged_at = now(),
            released_at = case when consistent + 1 >= $2 then now() end
        where agent_id = $1 and released_at is null
          and case when evidence = $3 then exists (
              select from site_measurements m
              where m.prober_id = $1 and m.rtt_us is not null and m.measured_at > judged_at
          ) else exists (
              select from mesh_measurements m
              where m.prober_id = $1 and m.rtt_us is not null and m.measured_at > judged_at
          ) end
        returning (released_at is not null) as "released!"
        "#,
        agent.get(),
        enough,
        Kind::Sites,
    )
    .optional(conn)
    .await?;
    Ok(released.unwrap_or(false))
}

/// Releases an agent at an operator's command and deletes its measurements, so that the agent is
/// judged only by new ones. Returns `false` if the agent was not quarantined.
pub async fn release(conn: &mut PgConnection, agent: AgentId) -> Result<bool, Error> {
    let released = sqlx::query!(
        "update quarantines set released_at = now() where agent_id = $1 and released_at is null",
        agent.get(),
    )
    .affected(conn)
    .await?;
    if released > 0 {
        sqlx::query!("delete from mesh_measurements where prober_id = $1", agent.get()).run(conn).await?;
        sqlx::query!("delete from site_measurements where prober_id = $1", agent.get()).run(conn).await?;
    }
    Ok(released > 0)
}

/// The reason of the open alarm; `None` if no alarm is open.
pub async fn alarm(conn: &mut PgConnection) -> Result<Option<String>, Error> {
    sqlx::query_scalar!("select reason from trust_alarms where ended_at is null").optional(conn).await
}

/// Raises the alarm, or updates its reason. Returns `true` if the alarm is new.
pub async fn raise(conn: &mut PgConnection, reason: &str) -> Result<bool, Error> {
    sqlx::query_scalar!(
        r#"
        insert into trust_alarms (reason) values ($1)
        on conflict ((true)) where ended_at is null do update set reason = excluded.reason
        returning (xmax = 0) as "new!"
        "#,
        reason,
    )
    .one(conn)
    .await
}

/// Ends the alarm. Returns `false` if no alarm was open.
pub async fn end_alarm(conn: &mut PgConnection) -> Result<bool, Error> {
    let ended = sqlx::query!("update trust_alarms set ended_at = now() where ended_at is null").affected(conn).await?;
    Ok(ended > 0)
}

/// At most `limit` sites whose measurements are used to judge agents. Chooses the sites that the
/// most agents have measured and, among equals, the most recently measured.
pub async fn judged_sites(conn: &mut PgConnection, limit: i64) -> Result<Vec<SiteId>, Error> {
    sqlx::query_scalar!(
        r#"
        with recent as (
            -- Limits the rows before counting, because there may be millions of measurements.
            select site_id, measured_at from site_measurements
            where rtt_us is not null order by measured_at desc limit $1::bigint * 64
        )
        select site_id from recent group by site_id order by count(*) desc, max(measured_at) desc, site_id desc limit $1
        "#,
        limit,
    )
    .all(conn)
    .await
}

/// The measurements of these sites, including those by quarantined agents. If an agent was
/// quarantined because of its site measurements and has since measured `enough` of these sites, its
/// measurements from before the quarantine are omitted.
pub async fn sites_of_all(
    conn: &mut PgConnection,
    sites: &[SiteId],
    enough: usize,
) -> Result<Vec<Vec<(AgentId, Rtt)>>, Error> {
    let rows = sqlx::query!(
        r#"
        select m.site_id, m.prober_id, m.rtt_us as "rtt_us!", coalesce(m.measured_at > q.since, false) as "since!"
        from site_measurements m
        left join quarantines q on q.agent_id = m.prober_id and q.released_at is null and q.evidence = $2
        where m.site_id = any($1) and m.rtt_us is not null
        order by m.site_id, m.prober_id
        "#,
        sites as _,
        Kind::Sites,
    )
    .all(conn)
    .await?;
    let mut since: BTreeMap<AgentId, usize> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.since) {
        *since.entry(row.prober_id).or_default() += 1;
    }
    let anew = |prober: AgentId| since.get(&prober).is_some_and(|count| *count >= enough);
    let mut measured: BTreeMap<SiteId, Vec<(AgentId, Rtt)>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.since || !anew(row.prober_id)) {
        measured.entry(row.site_id).or_default().push((row.prober_id, row.rtt_us));
    }
    Ok(measured.into_values().collect())
}

/// For each connected agent that was quarantined because of its site measurements, at most `most`
/// of these sites for the agent to measure again. Selects sites that the agent has not measured
/// since the quarantine began, or not within `max_age`.
pub async fn on_probation(
    conn: &mut PgConnection,
    sites: &[SiteId],
    most: i64,
    max_age: Duration,
) -> Result<Vec<(SiteId, AgentId)>, Error> {
    let rows = sqlx::query!(
        r#"
        with shown as (
            select s.id as site_id, q.agent_id, q.since, m.measured_at,
                   row_number() over (partition by q.agent_id order by s.place) as turn
            from quarantines q
            join sessions on sessions.agent_id = q.agent_id and sessions.state = 'active'
            cross join unnest($1::bigint[]) with ordinality as s (id, place)
            left join site_measurements m on m.site_id = s.id and m.prober_id = q.agent_id
            where q.released_at is null and q.evidence = $2
        )
        select site_id as "site_id!", agent_id from shown
        where turn <= $3
          and coalesce(measured_at <= since or measured_at < now() - $4::interval, true)
        order by agent_id, site_id
        "#,
        sites as _,
        Kind::Sites,
        most,
        Interval(max_age),
    )
    .all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (SiteId::new(row.site_id), row.agent_id)).collect())
}

#[derive(Debug, Clone, Copy)]
pub struct CrawlRtt {
    pub agent: AgentId,
    pub site: SiteId,
    pub task: TaskId,
    pub rtt: Rtt,
}

/// Compares the round trips that crawls observed with the round trips known when their agents were
/// chosen. After enough contradictions in a row, marks the site's measurements as doubtful. Returns
/// the newly marked sites. Omits sites that another transaction has locked: this transaction has
/// locked tasks, and a site is locked before its tasks.
pub async fn note(conn: &mut PgConnection, crawls: &[CrawlRtt]) -> Result<Vec<SiteId>, Error> {
    let (tasks, agents): (Vec<i64>, Vec<i64>) =
        crawls.iter().map(|crawled| (crawled.task.get(), crawled.agent.get())).unzip();
    let rows = sqlx::query!(
        r#"
        select t.id, coalesce(c.measured_us[listed.rank], c.predicted_us[listed.rank]) as "known: Rtt"
        from unnest($1::bigint[], $2::bigint[]) as crawled (task_id, agent_id)
        join tasks t on t.id = crawled.task_id
        join assignments c on c.id = t.assignment_id and c.agent_id = crawled.agent_id
        cross join lateral (select array_position(c.candidates, c.agent_id) as rank) listed
        "#,
        &tasks,
        &agents,
    )
    .all(conn)
    .await?;
    let known: HashMap<TaskId, Rtt> = rows.into_iter().filter_map(|row| Some((row.id, row.known?))).collect();
    let (mut agreeing, mut doubted) = (Vec::new(), Vec::new());
    for crawled in crawls {
        let Some(known) = known.get(&crawled.task) else { continue };
        match weigh(*known, crawled.rtt) {
            0 => agreeing.push(crawled.site.get()),
            weight if add(conn, crawled.site, weight).await? => doubted.push(crawled.site),
            _ => {}
        }
    }
    if !agreeing.is_empty() {
        sqlx::query!(
            r#"
            with agreeing as (
                select id from sites where id = any($1) and contradictions > 0
                order by id
                for no key update skip locked
            )
            update sites set contradictions = 0 from agreeing where sites.id = agreeing.id
            "#,
            &agreeing,
        )
        .run(conn)
        .await?;
    }
    Ok(doubted)
}

async fn add(conn: &mut PgConnection, site: SiteId, weight: i32) -> Result<bool, Error> {
    let doubted = sqlx::query_scalar!(
        r#"
        with counted as (
            select id, least(contradictions + $2, $3) as contradictions,
                   coalesce(doubted_at < now() - $4::interval, true) as may_doubt
            from sites where id = $1
            for no key update skip locked
        )
        update sites
        set contradictions = case when counted.contradictions >= $3 and may_doubt then 0 else counted.contradictions end,
            doubted_at = case when counted.contradictions >= $3 and may_doubt then now() else doubted_at end
        from counted where sites.id = counted.id
        returning counted.contradictions >= $3 and may_doubt as "doubted!"
        "#,
        site.get(),
        weight,
        ENOUGH,
        Interval(PAUSE),
    )
    .optional(conn)
    .await?;
    Ok(doubted.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixtures::{self, Conn};

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn agents_are_judged_by_the_sites_measured_last_not_by_the_youngest(mut conn: Conn) {
        let agent = fixtures::agent(&mut conn, "a").await;
        let mut sites = Vec::new();
        for number in 0..70 {
            let site = fixtures::site(&mut conn, &format!("s{number}.cn")).await;
            fixtures::measured(&mut conn, site, agent, 1000, &format!("{number} days")).await;
            sites.push(site);
        }
        assert_eq!(judged_sites(&mut conn, 1).await.expect("choose"), sites[..1]);
        assert_eq!(judged_sites(&mut conn, 3).await.expect("choose"), sites[..3]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_is_doubted_after_two_contradictions_in_a_row_and_then_left_in_peace(mut conn: Conn) {
        let site = fixtures::site(&mut conn, "a.cn").await;
        for (weight, doubted) in [(1, false), (1, true), (1, false), (ENOUGH, false)] {
            assert_eq!(add(&mut conn, site, weight).await.expect("add"), doubted, "{weight}");
        }
        fixtures::execute(&mut conn, "update sites set doubted_at = now() - interval '7 hours'").await;
        assert!(add(&mut conn, site, 1).await.expect("add"), "what was counted meanwhile is not forgotten");
        let other = fixtures::site(&mut conn, "b.cn").await;
        assert!(add(&mut conn, other, ENOUGH).await.expect("add"), "a large one is enough by itself");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_crawl_is_compared_with_what_was_known_when_its_agent_was_chosen(mut conn: Conn) {
        let (agent, other) = (fixtures::agent(&mut conn, "a").await, fixtures::agent(&mut conn, "b").await);
        let batch = fixtures::batch(&mut conn, "b", "gnp-top1").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, agent).await;
        let crawled = CrawlRtt { agent, site, task, rtt: Rtt::try_from_micros(200_000).expect("a round trip") };
        for (measured_us, predicted_us, doubted) in
            [(None, None, false), (Some(190_000), Some(10_000), false), (Some(20_000), Some(190_000), true)]
        {
            sqlx::query(
                "update assignments set candidates = array[$1], measured_us = array[$2], predicted_us = array[$3]",
            )
            .bind(agent.get())
            .bind::<Option<i64>>(measured_us)
            .bind::<Option<i64>>(predicted_us)
            .execute(&mut *conn)
            .await
            .expect("a choice");
            let noted = note(&mut conn, &[crawled]).await.expect("note");
            assert_eq!(!noted.is_empty(), doubted, "{measured_us:?} {predicted_us:?}");
        }
        assert!(
            note(&mut conn, &[CrawlRtt { agent: other, ..crawled }]).await.expect("note").is_empty(),
            "nobody chose it"
        );
        // A crawl that agrees with the known round trip resets the number of contradictions.
        fixtures::execute(&mut conn, "update sites set contradictions = 1").await;
        fixtures::execute(&mut conn, "update assignments set measured_us = array[200000]").await;
        assert!(note(&mut conn, &[crawled]).await.expect("note").is_empty());
        let counted: i32 = fixtures::scalar(&mut conn, "select contradictions::integer from sites").await;
        assert_eq!(counted, 0);
    }
}
