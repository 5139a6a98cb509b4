//! Reads the results of a batch's tasks.
//!
//! Rows are read in pages, by key, through the unique index on batch, site and round. So a report
//! needs constant memory, and the cost per row does not depend on the size of the batch. If the
//! sites of a page have nearly consecutive identifiers, those of the next page probably do, too.
//! The next page then reads a range of site identifiers instead of looking up each site.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, ReasonKind, Rtt, TaskId, TaskState};
use crate::store::Error;
use crate::store::rows_and_errors::Rows;
use crate::store::tasks::unmet_and_wait_causes;
use crate::store::types::{Unsigned, whole};

use super::assignment_row::{AssignmentRow, ListKey, TaskRow};

/// The next page reads a range of sites if, on average, at least one in `SPARSEST` consecutive site
/// identifiers is in the batch.
const SPARSEST: i64 = 4;

/// Selects the tasks of a batch that are the newest rounds of their sites and meet all of these
/// conditions.
#[derive(Debug, Clone)]
pub struct TaskFilter {
    pub batch: BatchId,
    /// The task is in one of these states; empty if any state is accepted.
    pub states: Vec<TaskState>,
    /// The task failed or was cancelled for one of these reasons; empty if there is no condition.
    pub reasons: Vec<ReasonKind>,
    /// The agent of the task's newest choice is one of these. `None` selects all tasks, with or
    /// without an agent.
    pub agents: Option<Vec<AgentId>>,
    /// The task entered its state at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// The task entered its state before this time.
    pub until: Option<DateTime<Utc>>,
}

impl TaskFilter {
    fn states(&self) -> Option<Vec<String>> {
        let names = self.states.iter().map(|state| state.name().to_owned());
        (!self.states.is_empty()).then(|| names.collect())
    }

    fn reasons(&self) -> Option<Vec<String>> {
        let names = self.reasons.iter().map(|reason| reason.name().to_owned());
        (!self.reasons.is_empty()).then(|| names.collect())
    }
}

/// Reads a report page by page. Keeps no connection between pages.
#[derive(Debug, Clone)]
pub struct AssignmentPages {
    wanted: TaskFilter,
    after: ListKey,
    /// The mean difference between consecutive site identifiers of the last page's rows, if it was
    /// small. The next page then reads a range of site identifiers. If this is `None`, the next
    /// page looks up each site.
    spacing: Option<i64>,
    ended: bool,
}

impl AssignmentPages {
    pub const fn new(wanted: TaskFilter) -> Self {
        Self { wanted, after: ListKey { site: 0, round: 0 }, spacing: None, ended: false }
    }

    /// At most `limit` further rows; empty after the last row. Run in a snapshot of its own, because
    /// settings of the planner last until its end.
    pub async fn next(&mut self, conn: &mut PgConnection, limit: u32) -> Result<Vec<AssignmentRow>, Error> {
        let mut rows = Vec::new();
        while rows.is_empty() && !self.ended {
            let range = self.spacing.map(|spacing| spacing.saturating_mul(i64::from(limit)));
            let last = range.map_or(i64::MAX, |range| self.after.site.saturating_add(range));
            rows = assignments(conn, &self.wanted, self.after, last, i64::from(limit)).await?;
            let read = i64::try_from(rows.len()).unwrap_or(i64::MAX);
            // A page that reads a range may be short although more rows follow.
            self.ended = range.is_none() && read < i64::from(limit);
            let from = self.after.site;
            if let Some(row) = rows.last() {
                self.after = row.key;
            }
            let spacing =
                self.after.site.saturating_sub(from).checked_add(read - 1).and_then(|span| span.checked_div(read));
            self.spacing = spacing.filter(|spacing| (1..=SPARSEST).contains(spacing));
        }
        Ok(rows)
    }

    /// Number of rows that have not been read yet.
    pub async fn behind(&self, conn: &mut PgConnection) -> Result<u64, Error> {
        count_behind(conn, &self.wanted, self.after).await
    }
}

/// With `true`, makes the planner read a page's rows in index order, and join ranges of sites by
/// hashing, until the transaction ends or a call with `false`. By default the planner underestimates
/// the number of rows, so it would sort all rows of the batch for every page, and join by nested
/// loops.
async fn expect_order(conn: &mut PgConnection, order: bool) -> Result<(), Error> {
    sqlx::query!(
        r#"
        select set_config('enable_sort', $1, true) as sort, set_config('enable_nestloop', $1, true) as nestloop,
               set_config('enable_mergejoin', $1, true) as mergejoin, set_config('jit', 'off', true) as jit
        "#,
        if order { "off" } else { "on" },
    )
    .one(conn)
    .await?;
    Ok(())
}

/// The statement that reads a page; `$sites` joins the stored facts about the page's sites.
macro_rules! page {
    ($sites:tt, $wanted:expr, $words:expr, $after:expr, $last:expr, $limit:expr) => {
        sqlx::query_as!(
            TaskRow,
            r#"
        with page as materialized (
            select t.id, t.site_id, t.round, t.state, t.state_since, t.reason, t.reason_kind, t.assignment_id
            from tasks t
            -- `t.site_id >= $2` lets the index scan start at this site. With only the comparison of
            -- rows, the scan would start at the batch's first site.
            where t.batch_id = $1 and t.site_id >= $2 and (t.site_id, t.round) > ($2, $3) and t.site_id <= $9
              and t.retried_at is null
              and ($4::text[] is null or t.state::text = any($4))
              and ($5::text[] is null
                   or t.state::text in ('failed', 'cancelled') and coalesce(t.reason_kind::text, 'other') = any($5))
              and ($6::bigint[] is null or (select agent_id from assignments where id = t.assignment_id) = any($6))
              and ($7::timestamptz is null or t.state_since >= $7)
              and ($8::timestamptz is null or t.state_since < $8)
            order by t.batch_id, t.site_id, t.round
            limit $10
        )
        -- Each `limit 1` makes the planner look up rows by key, even if its estimates are wrong.
        select t.id as "id!", t.site_id as "site_id!", t.round as "round!", s.name as "site!", s.origin as "origin?",
               t.state as "state!", t.state_since as "state_since!",
               case when t.state in ('failed', 'cancelled') then t.reason end as "reason?", nullif(o.message, '') as "message?",
               case when t.state in ('failed', 'cancelled') then coalesce(t.reason_kind::text, 'other') end as "reason_kind?: ReasonKind",
               a.name as "agent?", a.city as "city?", a.carrier as "carrier?", c.strategy as "strategy?", c.detail as "detail?",
               v.confidence as "anycast?",
               array_position(c.candidates, c.agent_id) as "rank?: Unsigned<u32>",
               c.predicted_us[array_position(c.candidates, c.agent_id)] as "predicted_us?: Rtt",
               c.measured_us[array_position(c.candidates, c.agent_id)] as "measured_us?: Rtt",
               (select count(*) from assignments n where n.task_id = t.id) as "assignments!: Unsigned<u32>",
               o.kind as "kind?", o.pages as "pages?", o.bytes as "bytes?", o.errors as "errors?",
               o.started_at as "started_at?", o.duration_ms as "duration_ms?", o.rtt_us as "rtt_us?",
               coalesce(m.probes, 0) as "probes!: Unsigned<u64>",
               coalesce(m.requests, 0) + coalesce(p.requests, 0) as "requests!: Unsigned<u64>",
               coalesce(f.confirming, 0) as "confirming_probes!: Unsigned<u64>"
        from page t
        left join lateral (select * from assignments where id = t.assignment_id limit 1) c on true
        left join agents a on a.id = c.agent_id
        left join lateral (select * from outcomes where task_id = t.id limit 1) o on true
        "# + $sites,
            $wanted.batch.get(),
            $after.site,
            whole::<i32, _>($after.round),
            $words.0.as_deref(),
            $words.1.as_deref(),
            $wanted.agents.as_ref() as _,
            $wanted.since,
            $wanted.until,
            $last,
            $limit,
        )
    };
}

/// At most `limit` rows after `after`, of sites up to the identifier `last`. Unless `last` is
/// `i64::MAX`, the statement reads every site between `after` and `last`, so many of these sites
/// should belong to the batch.
async fn assignments(
    conn: &mut PgConnection,
    wanted: &TaskFilter,
    after: ListKey,
    last: i64,
    limit: i64,
) -> Result<Vec<AssignmentRow>, Error> {
    if wanted.agents.as_ref().is_some_and(Vec::is_empty) {
        return Ok(Vec::new());
    }
    expect_order(conn, true).await?;
    let words = (wanted.states(), wanted.reasons());
    let rows = if last == i64::MAX {
        let rows = page!(
            r#"
        cross join lateral (select name, origin from sites where id = t.site_id limit 1) s
        left join lateral (select confidence from site_verdicts where site_id = t.site_id and suspect limit 1) v on true
        cross join lateral (
            select sum(answered + lost) filter (where shared_from is null) as probes, sum(requests)::bigint as requests
            from site_measurements where site_id = t.site_id
        ) m
        cross join lateral (select sum(requests)::bigint as requests from resolved_addresses where site_id = t.site_id) p
        cross join lateral (
            select case when exists (select from confirmers where site_id = t.site_id) then (
                select sum(m.answered + m.lost)
                from confirming_measurements join site_measurements m using (site_id, prober_id)
                where m.site_id = t.site_id and m.shared_from is null
            ) end as confirming
        ) f
        "#,
            wanted,
            words,
            after,
            last,
            limit
        );
        rows.all(conn).await?
    } else {
        let rows = page!(
            r#"
        join (select id, name, origin from sites where id between $2 and $9) s on s.id = t.site_id
        left join (
            select site_id, confidence from site_verdicts where site_id between $2 and $9 and suspect
        ) v on v.site_id = t.site_id
        left join (
            select site_id, sum(answered + lost) filter (where shared_from is null) as probes, sum(requests)::bigint as requests
            from site_measurements where site_id between $2 and $9 group by site_id
        ) m on m.site_id = t.site_id
        left join (
            select site_id, sum(requests)::bigint as requests
            from resolved_addresses where site_id between $2 and $9 group by site_id
        ) p on p.site_id = t.site_id
        left join (
            select m.site_id, sum(m.answered + m.lost) as confirming
            from (select * from confirmers where site_id between $2 and $9) c
            cross join lateral (
                select * from site_measurements
                where site_id = c.site_id and prober_id = c.agent_id and shared_from is null
                  and measured_at between c.asked_at and coalesce(c.answered_at, 'infinity')
                limit 1
            ) m
            group by m.site_id
        ) f on f.site_id = t.site_id
        "#,
            wanted,
            words,
            after,
            last,
            limit
        );
        rows.all(conn).await?
    };
    expect_order(conn, false).await?;
    let mut rows: Vec<AssignmentRow> = rows.into_iter().map(AssignmentRow::from).collect();
    let waiting =
        |row: &&AssignmentRow| matches!(row.state, TaskState::Submitted | TaskState::Measuring | TaskState::Located);
    let waiting: Vec<TaskId> = rows.iter().filter(waiting).map(|row| row.task).collect();
    if !waiting.is_empty() {
        let mut waits = unmet_and_wait_causes::of(conn, &waiting).await?;
        rows.iter_mut().for_each(|row| row.waits = waits.remove(&row.task));
    }
    rows.sort_unstable_by_key(|row| row.key);
    Ok(rows)
}

async fn count_behind(conn: &mut PgConnection, wanted: &TaskFilter, after: ListKey) -> Result<u64, Error> {
    let (states, reasons) = (wanted.states(), wanted.reasons());
    let count = sqlx::query_scalar!(
        r#"
        select count(*) as "count!: Unsigned<u64>"
        from tasks t
        where t.batch_id = $1 and t.retried_at is null and t.site_id >= $2 and (t.site_id, t.round) > ($2, $3)
          and ($4::text[] is null or t.state::text = any($4))
          and ($5::text[] is null
               or t.state::text in ('failed', 'cancelled') and coalesce(t.reason_kind::text, 'other') = any($5))
          and ($6::bigint[] is null or (select agent_id from assignments where id = t.assignment_id) = any($6))
          and ($7::timestamptz is null or t.state_since >= $7)
          and ($8::timestamptz is null or t.state_since < $8)
        "#,
        wanted.batch.get(),
        after.site,
        whole::<i32, _>(after.round),
        states.as_deref(),
        reasons.as_deref(),
        wanted.agents.as_ref() as _,
        wanted.since,
        wanted.until,
    )
    .one(conn)
    .await?;
    Ok(count.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixtures::{self, Conn};

    /// Makes a batch of every third of the first 240 sites, and of all sites from 241 to 480. The
    /// stored facts differ from site to site.
    async fn stored(conn: &mut Conn) -> TaskFilter {
        let (agent, batch) = (fixtures::agent(conn, "a").await, fixtures::batch(conn, "autumn", "gnp-top3").await);
        fixtures::execute_for(
            conn,
            "with made as (insert into sites (name) select 's' || n || '.cn' from generate_series(1, 480) n returning id)
             insert into tasks (batch_id, site_id) select $1, id from made where id > 240 or id % 3 = 0",
            batch.get(),
        )
        .await;
        for sql in [
            "insert into site_measurements (site_id, prober_id, rtt_us, answered, lost, requests)
             select id, $1, 5000, id % 7, 1, id % 11 from sites where id % 5 <> 0",
            "insert into resolved_addresses (site_id, prober_id, address, requests)
             select id, $1, '203.0.113.1', 2 from sites where id % 4 = 0",
            "insert into confirmations (site_id) select id from sites where $1 > 0 and id % 6 = 0",
            "insert into confirmers (site_id, agent_id, asked_at)
             select id, $1, now() + (case when id % 5 = 1 then 1 else -1 end) * interval '1 hour' from sites where id % 6 = 0",
            "insert into site_verdicts (site_id, suspect, confidence, evidence)
             select id, id % 2 = 0, 0.5, case when id % 2 = 0 then 'x' else '' end from sites where $1 > 0 and id % 9 = 0",
            "insert into assignments (task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us)
             select id, $1, 'gnp-top3', 1, array[$1], array[site_id * 10], array[null]::bigint[] from tasks where id % 2 = 0",
        ] {
            fixtures::execute_for(conn, sql, agent.get()).await;
        }
        fixtures::execute(
            conn,
            "update tasks t set assignment_id = a.id, state = 'assigned' from assignments a where a.task_id = t.id",
        )
        .await;
        TaskFilter { batch, states: Vec::new(), reasons: Vec::new(), agents: None, since: None, until: None }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn pages_hold_the_same_rows_whether_they_look_sites_up_or_read_ranges_of_them(mut conn: Conn) {
        let wanted = stored(&mut conn).await;
        let begin = ListKey::default();
        let looked_up = assignments(&mut conn, &wanted, begin, i64::MAX, 1_000).await.expect("read");
        assert_eq!(looked_up.len(), 320);
        let ranges = assignments(&mut conn, &wanted, begin, 480, 1_000).await.expect("read");
        assert_eq!(ranges, looked_up);
        let one = |row: &&AssignmentRow| row.confirming_probes > 0 && row.anycast.is_some() && row.choice.is_some();
        assert!(looked_up.iter().any(|row| one(&row)) && looked_up.iter().any(|row| row.probes == 0));

        for limit in [1, 7, 50, 1_000] {
            let (mut pages, mut rows, mut dense) = (AssignmentPages::new(wanted.clone()), Vec::new(), 0);
            loop {
                let page = pages.next(&mut conn, limit).await.expect("read");
                assert!(page.len() <= usize::try_from(limit).expect("small"));
                dense += usize::from(pages.spacing.is_some());
                let behind = pages.behind(&mut conn).await.expect("counted");
                if page.is_empty() {
                    break;
                }
                rows.extend(page);
                assert_eq!(behind, 320 - u64::try_from(rows.len()).expect("small"));
            }
            assert!(rows == looked_up && dense > 0, "pages of {limit}");
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_filter_that_few_sites_of_a_range_meet_ends_no_report_early(mut conn: Conn) {
        let wanted = stored(&mut conn).await;
        fixtures::execute(&mut conn, "update tasks set state = 'measuring' where site_id in (3, 300, 301, 480)").await;
        let wanted = TaskFilter { states: vec![TaskState::Measuring], ..wanted };
        let (mut pages, mut sites) = (AssignmentPages::new(wanted), Vec::new());
        loop {
            let page = pages.next(&mut conn, 2).await.expect("read");
            if page.is_empty() {
                break;
            }
            assert!(page.iter().all(|row| row.waits.is_some()));
            sites.extend(page.into_iter().map(|row| row.site));
        }
        assert_eq!(sites, ["s3.cn", "s300.cn", "s301.cn", "s480.cn"]);
    }
}
