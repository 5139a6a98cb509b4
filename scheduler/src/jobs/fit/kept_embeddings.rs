//! Decides which embeddings and placements are kept: the newest ones, and those that sites still
//! need.

use anyhow::Context;

use crate::jobs::leadership::Leader;
use crate::store::embeddings;

/// Number of newest embeddings that are always kept. An older embedding is kept only while a site
/// with an open task is placed in it.
const KEPT: i64 = 5;
/// Maximum number of placements deleted in one pass, which takes well under a second.
const FORGOTTEN_PER_PASS: i64 = 5_000;

/// Deletes placements and embeddings that no site needs any more.
pub(super) async fn prune(scheduler: &Leader) -> anyhow::Result<()> {
    let mut tx = scheduler.begin().await?;
    let gone = embeddings::prune(&mut tx, KEPT, FORGOTTEN_PER_PASS).await.context("forget old embeddings")?;
    tx.commit().await.context("commit what was forgotten")?;
    if i64::try_from(gone).is_ok_and(|gone| gone >= FORGOTTEN_PER_PASS) {
        scheduler.wakes.fit.notify_one();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::jobs::fixtures::Trial;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn old_embeddings_go_when_nobody_lies_in_them_and_their_history_stays(pool: PgPool) {
        let trial = Trial::new(pool, 4).await;
        trial.mesh(&trial.agents).await;
        trial.fitted().await.expect("an embedding");
        let (_, waiting) = trial.task("waits.cn").await;
        let (done, _) = trial.task("done.cn").await;
        trial.execute_for("update tasks set state = 'cancelled' where id = $1", done.get()).await;
        trial
            .execute(
                "insert into site_placements (site_id, epoch, coordinate, fit_error)
                 select sites.id, epoch, array[1, 1, 1, 0], 0 from sites, embeddings",
            )
            .await;
        for _ in 0..KEPT + 3 {
            embeddings::ask_for_fit(&mut *trial.conn().await).await.expect("ask");
            trial.fitted().await.expect("an embedding");
        }
        trial.fitted().await.expect("an embedding");
        assert_eq!(trial.count("select count(*) from embeddings").await, KEPT + 1, "one site waits in the first");
        assert_eq!(trial.count("select site_id from site_placements").await, waiting.get());
        assert_eq!(trial.count("select count(*) from embedding_history").await, KEPT + 4);

        trial.execute("update tasks set state = 'cancelled'").await;
        trial.fitted().await.expect("an embedding");
        assert_eq!(trial.count("select count(*) from embeddings").await, KEPT);
        assert_eq!(trial.count("select count(distinct epoch) from agent_placements").await, KEPT);
    }
}
