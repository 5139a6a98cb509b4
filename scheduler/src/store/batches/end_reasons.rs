//! Reads the reasons why a batch's tasks failed or were cancelled, each with an example.

use sqlx::PgConnection;

use crate::model::{BatchId, ReasonKind};
use crate::store::Error;
use crate::store::rows::Rows;
use crate::store::types::Unsigned;

/// A reason why tasks of a batch failed or were cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndReason {
    pub kind: ReasonKind,
    pub tasks: u64,
    pub site: String,
    /// The state of `site`'s task, followed by the reason for this state.
    pub reason: String,
}

/// Why tasks of the batch failed or were cancelled: one row per kind of reason, the most frequent
/// first.
pub async fn endings(conn: &mut PgConnection, batch: BatchId) -> Result<Vec<EndReason>, Error> {
    let endings = sqlx::query_as!(
        EndReason,
        r#"
        select kinds.kind as "kind!: ReasonKind", kinds.tasks as "tasks!: Unsigned<u64>", s.name as site,
               t.state::text || coalesce(': ' || t.reason, '') as "reason!"
        from (
            select coalesce(reason_kind::text, 'other') as kind, count(*) as tasks, min(id) as example
            from tasks
            where batch_id = $1 and retried_at is null and state in ('failed', 'cancelled')
            group by 1
        ) kinds
        join tasks t on t.id = kinds.example
        join sites s on s.id = t.site_id
        order by kinds.tasks desc, kinds.kind
        "#,
        batch.get(),
    );
    endings.all(conn).await
}
