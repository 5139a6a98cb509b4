//! Contradictions: crawls whose observed round trip is much longer or shorter than the round trip
//! known when the agent was chosen. After enough contradictions in a row, the site's measurements
//! are marked as doubtful, so that the site is measured again.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::model::{AgentId, Rtt, SiteId, TaskId};
use crate::strategy::learned_distances::{ENOUGH, PAUSE, weigh};

use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::types::Interval;

#[derive(Debug, Clone, Copy)]
pub struct CrawlRtt {
    pub agent: AgentId,
    pub site: SiteId,
    pub task: TaskId,
    pub rtt: Rtt,
}

/// Compares the round trips that crawls observed with the round trips known when their agents were
/// chosen. After enough contradictions in a row, marks the site's measurements as doubtful. Returns
/// the newly marked sites.
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
        sqlx::query!("update sites set contradictions = 0 where id = any($1) and contradictions > 0", &agreeing)
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
            for no key update
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
