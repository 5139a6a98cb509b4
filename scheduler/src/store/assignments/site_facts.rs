//! Reads the facts about sites that strategies use besides round trips: host, address, position and
//! size.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::model::TaskId;
use crate::model::site_name::SiteName;
use crate::strategy::candidate_and_site::SiteFacts;

use crate::store::rows::Rows;
use crate::store::{Error, position};

/// The facts that strategies use about these tasks' sites.
pub async fn of_tasks(conn: &mut PgConnection, tasks: &[TaskId]) -> Result<HashMap<TaskId, SiteFacts>, Error> {
    let rows = sqlx::query!(
        r#"
        select t.id as "id!", coalesce(s.origin, s.name) as "name!", s.address, s.latitude, s.longitude,
               b.request_interval_ms as "request_interval_ms!",
               last.pages as "pages?", last.bytes as "bytes?", under_way.pages as "fetched?"
        from tasks t
        join sites s on s.id = t.site_id
        join batches b on b.id = t.batch_id
        left join checkpoints under_way on under_way.task_id = t.id
        left join lateral (
            select o.pages, o.bytes from tasks other join outcomes o on o.task_id = other.id
            where other.site_id = t.site_id and o.kind in ('complete', 'truncated')
            order by o.accepted_at desc
            limit 1
        ) last on true
        where t.id = any($1)
        "#,
        tasks as _,
    )
    .all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let host = match row.name.parse::<SiteName>() {
                Ok(name) => name.host().to_owned(),
                Err(_) => row.name,
            };
            let size = match (row.pages, row.bytes) {
                (Some(pages), Some(bytes)) => Some((pages.0, bytes.0)),
                _ => None,
            };
            let position = position("sites", row.latitude, row.longitude)?;
            let (fetched, interval) = (row.fetched.map_or(0, u32::from), row.request_interval_ms.0);
            Ok((row.id, SiteFacts { host, address: row.address, position, size, fetched, interval }))
        })
        .collect()
}
