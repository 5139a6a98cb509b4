//! Computes the size that is assumed for a site that has never been crawled.

use std::collections::HashMap;

use crate::model::AgentId;

use super::crawl_duration::Crawl;

/// Mean pages and bytes of crawls; `None` if there are no crawls.
pub fn usual_size(crawls: &HashMap<AgentId, Vec<Crawl>>) -> Option<(u32, u64)> {
    let all = || crawls.values().flatten().map(|crawl| crawl.work);
    let count = u64::try_from(all().count()).ok().filter(|count| *count > 0)?;
    let pages = all().map(|work| u64::from(work.pages)).sum::<u64>() / count;
    let bytes = all().fold(0_u64, |sum, work| sum.saturating_add(work.bytes)) / count;
    Some((u32::try_from(pages).unwrap_or(u32::MAX), bytes))
}
