//! Recrawling: creates the next round of every task whose recrawl is due. The new round is then
//! handled like any other.

use futures_util::FutureExt as _;

use crate::store::tasks::measuring_and_rounds;

use super::leadership::Leader;

/// Maximum number of rounds created in one transaction, so that rows are locked for well under a
/// second.
const TASKS_PER_PASS: i64 = 500;

/// Runs transactions of bounded size until no recrawl is due.
pub async fn run_once(scheduler: &Leader) -> anyhow::Result<()> {
    loop {
        let made = scheduler
            .tx("recrawl", |tx| async move { Ok(measuring_and_rounds::recrawl(tx, TASKS_PER_PASS).await?) }.boxed());
        let made = made.await?;
        if made.rounds > 0 {
            tracing::info!(made.rounds, "sites are crawled again");
            scheduler.wakes.measure.notify_one();
        }
        if i64::try_from(made.due).is_ok_and(|due| due < TASKS_PER_PASS) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::config::Config;
    use crate::jobs::fixtures::Trial;
    use crate::jobs::leadership::NotLeader;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn only_the_leader_makes_rounds_and_all_that_are_due(pool: PgPool) {
        let trial = Trial::new(pool.clone(), 0).await;
        let other = Trial::beside(&pool, Config::default());
        let batch = trial.batch("hourly", "random").await;
        trial.task_of(batch, "s.cn", "done").await;
        trial
            .execute(
                "with made as (insert into sites (name) select 's' || n || '.cn' from generate_series(1, 600) n returning id)
                 insert into tasks (batch_id, site_id, state) select b.id, made.id, 'done' from made, batches b",
            )
            .await;
        trial.execute("update tasks set recrawl_at = now() where site_id % 100 <> 0").await;
        let off = other.try_pass("recrawl").await;
        assert!(off.is_err_and(|error| error.is::<NotLeader>()));
        let made = "select count(*) from tasks where round = 2 and state = 'located'";
        assert_eq!(trial.count(made).await, 0);

        trial.recrawl().await;
        let due = trial.count("select count(*) from tasks where site_id % 100 <> 0 and round = 1").await;
        assert!(due > TASKS_PER_PASS, "more than one transaction's");
        assert_eq!(trial.count(made).await, due);
        trial.recrawl().await;
        assert_eq!(trial.count(made).await, due);
        // The query uses an index, so the other rows do not slow it down.
        trial.execute("analyze tasks").await;
        let mut conn = trial.conn().await;
        sqlx::query("set enable_seqscan = off").execute(&mut *conn).await.expect("set");
        let plan: Vec<String> = sqlx::query_scalar("explain select id from tasks where recrawl_at <= now()")
            .fetch_all(&mut *conn)
            .await
            .expect("explain");
        assert!(plan.join("\n").contains("tasks_to_recrawl"), "{plan:?}");
    }
}
