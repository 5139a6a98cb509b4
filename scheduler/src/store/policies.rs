//! Crawl policies as columns of `batches`.

use std::time::Duration;

use crate::model::CrawlPolicy;

use super::{Error, unsigned};

/// The columns.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) max_pages: i32,
    pub(super) max_bytes: i64,
    pub(super) max_depth: i32,
    pub(super) max_duration_ms: i64,
    pub(super) request_interval_ms: i64,
    pub(super) shortest_interval_ms: Option<i64>,
    pub(super) sitemaps: bool,
    pub(super) store: bool,
    pub(super) include: Vec<String>,
    pub(super) exclude: Vec<String>,
    pub(super) contact_url: Option<String>,
    pub(super) user_agent: Option<String>,
    pub(super) recrawl_interval_ms: Option<i64>,
}

impl TryFrom<Columns> for CrawlPolicy {
    type Error = Error;

    fn try_from(columns: Columns) -> Result<Self, Error> {
        let millis = |column, value| unsigned("batches", column, value).map(Duration::from_millis);
        let request_interval = millis("request_interval_ms", columns.request_interval_ms)?;
        let shortest = columns.shortest_interval_ms.map(|value| millis("shortest_interval_ms", value)).transpose()?;
        let recrawl = columns.recrawl_interval_ms.map(|value| millis("recrawl_interval_ms", value)).transpose()?;
        Ok(Self {
            max_pages: unsigned("batches", "max_pages", columns.max_pages)?,
            max_bytes: unsigned("batches", "max_bytes", columns.max_bytes)?,
            max_depth: unsigned("batches", "max_depth", columns.max_depth)?,
            max_duration: millis("max_duration_ms", columns.max_duration_ms)?,
            request_interval,
            shortest_interval: shortest.unwrap_or(request_interval),
            sitemaps: columns.sitemaps,
            store: columns.store,
            include: columns.include,
            exclude: columns.exclude,
            contact_url: columns.contact_url,
            user_agent: columns.user_agent,
            recrawl_interval: recrawl,
        })
    }
}
