//! Reads how many pages the last successful crawl of a site fetched.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::model::TaskId;
use crate::store::Error;
use crate::store::rows::Rows;

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
