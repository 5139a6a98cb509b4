//! Crawls over time, of one batch or of all batches.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::BatchId;
use crate::store::Error;
use crate::store::rows::Rows;
use crate::store::types::{Interval, Unsigned};

/// The crawls that ended within one interval of time.
#[derive(Debug, Clone, PartialEq)]
pub struct CrawledStretch {
    pub from: DateTime<Utc>,
    pub crawls: u64,
    pub pages: u64,
    pub bytes: f64,
}

/// The crawls that ended between `past` ago and now, in intervals of length `stretch`. Intervals
/// without a crawl are omitted. Reads one row per batch and minute in which crawls ended.
pub async fn crawled(
    conn: &mut PgConnection,
    batch: Option<BatchId>,
    past: Duration,
    stretch: Duration,
) -> Result<Vec<CrawledStretch>, Error> {
    let rows = sqlx::query!(
        r#"
        select date_bin($3::interval, minute, timestamptz 'epoch') as "from!", sum(crawls)::bigint as "crawls!: Unsigned<u64>",
               sum(pages)::bigint as "pages!: Unsigned<u64>", sum(bytes)::float8 as "bytes!"
        from batch_minutes
        where minute >= now() - $2::interval and ($1::bigint is null or batch_id = $1)
        group by 1 order by 1
        "#,
        batch.map(BatchId::get),
        Interval(past),
        Interval(stretch),
    )
    .all(conn)
    .await?;
    let stretches = rows.into_iter().map(|row| CrawledStretch {
        from: row.from,
        crawls: row.crawls.0,
        pages: row.pages.0,
        bytes: row.bytes,
    });
    Ok(stretches.collect())
}
