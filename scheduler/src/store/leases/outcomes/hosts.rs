//! Stores the hosts that crawls discover: other sites to which the crawled sites link.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::model::{AgentId, TaskId};
use crate::store::Error;
use crate::store::rows::Statement;

use super::locked_task::LockedTask;
use super::outcome_report::OutcomeReport;

/// Stores the other sites to which the crawled sites link, for each crawled site at most as many as
/// the batch's policy permits. A site's hosts of earlier rounds are removed unless this crawl found
/// them again. A crawl that fetched no page and found no other site changes nothing.
pub(super) async fn replace(
    conn: &mut PgConnection,
    locked: &HashMap<TaskId, LockedTask>,
    reported: &[(AgentId, &OutcomeReport)],
) -> Result<(), Error> {
    let found = |report: &&OutcomeReport| report.pages > 0 || !report.hosts.is_empty();
    let fetched = || reported.iter().map(|(_, report)| *report).filter(found);
    let links = fetched().flat_map(|report| report.hosts.iter().map(|host| (report.task.get(), host.as_str())));
    let (tasks, hosts): (Vec<i64>, Vec<&str>) = links.unzip();
    let again = |report: &&OutcomeReport| locked.get(&report.task).is_some_and(|task| task.round > 1);
    let again: Vec<TaskId> = fetched().filter(again).map(|report| report.task).collect();
    if !again.is_empty() {
        sqlx::query!(
            r#"
            delete from discovered_hosts d using tasks t
            where t.id = any($1) and d.site_id = t.site_id and d.batch_id = t.batch_id
              and not exists (
                  select from unnest($2::bigint[], $3::text[]) as found (task_id, host)
                  where found.task_id = t.id and found.host = d.host
              )
            "#,
            &again as _,
            &tasks,
            &hosts as _,
        )
        .run(conn)
        .await?;
    }
    if hosts.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        r#"
        insert into discovered_hosts (batch_id, host, site_id)
        select batch_id, host, site_id
        from (
            select t.batch_id, reported.host, t.site_id, b.max_hosts,
                   row_number() over (partition by t.id order by reported.number) as place
            from unnest($1::bigint[], $2::text[]) with ordinality as reported (task_id, host, number)
            join tasks t on t.id = reported.task_id
            join batches b on b.id = t.batch_id
            join sites s on s.id = t.site_id
            where reported.host <> s.name
        ) found
        where place <= max_hosts
        on conflict do nothing
        "#,
        &tasks,
        &hosts as _,
    )
    .run(conn)
    .await
}

#[cfg(test)]
mod tests {
    use super::super::OutcomeAnswer;
    use super::*;
    use crate::model::CrawlEnding;
    use crate::model::site_name::SiteName;
    use crate::store::fixtures::{self, Conn, LeasedTask};

    fn report(task: TaskId) -> OutcomeReport {
        fixtures::report(task, fixtures::TOKEN, CrawlEnding::Complete)
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_sites_newest_crawl_that_fetched_a_page_names_its_hosts(mut conn: Conn) {
        let LeasedTask { agent, session, task, .. } = fixtures::leased(&mut conn, "a").await;
        fixtures::execute(&mut conn, "update batches set policy = policy || '{\"max_hosts\": 2}'").await;
        let hosts = |names: &[&str]| names.iter().map(|name| name.parse().expect("a name")).collect::<Vec<SiteName>>();
        let first = OutcomeReport { hosts: hosts(&["c.cn", "a.cn", "b.cn", "d.cn"]), ..report(task) };
        let known = "select string_agg(host, ' ' order by host) from discovered_hosts";
        fixtures::record(&mut conn, agent, &first).await;
        assert_eq!(
            fixtures::scalar::<String>(&mut conn, known).await,
            "b.cn c.cn",
            "the first two that are other sites"
        );
        fixtures::execute(&mut conn, "update discovered_hosts set found_at = now() - interval '9 days'").await;

        for (pages, names, expected) in [(0, &[][..], "b.cn c.cn"), (1, &["b.cn", "d.cn"], "b.cn d.cn")] {
            // A new round of the same site.
            fixtures::execute(&mut conn, "update tasks set retried_at = now() where retried_at is null").await;
            fixtures::execute(
                &mut conn,
                "insert into tasks (batch_id, site_id, round, state) select batch_id, site_id, max(round) + 1, 'located' \
                 from tasks group by batch_id, site_id",
            )
            .await;
            let task: i64 = fixtures::scalar(&mut conn, "select max(id) from tasks").await;
            fixtures::assign(&mut conn, TaskId::new(task), agent).await;
            assert_eq!(fixtures::grant(&mut conn, agent, session).await.len(), 1);
            let again = report(TaskId::new(task));
            let again = OutcomeReport { pages, hosts: hosts(names), ..again };
            assert!(matches!(fixtures::record(&mut conn, agent, &again).await, OutcomeAnswer::Accepted { .. }));
            assert_eq!(fixtures::scalar::<String>(&mut conn, known).await, expected);
        }
        let old = "select host from discovered_hosts where found_at < now() - interval '8 days'";
        assert_eq!(fixtures::scalar::<String>(&mut conn, old).await, "b.cn", "it keeps its first time");
    }
}
