//! The section `[crawl]`: the crawl policy of batches that set none.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::model::{CrawlPolicy, PolicyRequest};

/// Parses the section `[crawl]` like a batch's policy, with the same bounds for values.
pub(super) fn crawl<'de, D: Deserializer<'de>>(from: D) -> Result<CrawlPolicy, D::Error> {
    let asked = PolicyRequest::deserialize(from)?.checked();
    let policy = asked.and_then(|asked| asked.or(&CrawlPolicy::default()).agreed());
    policy.map_err(|error| D::Error::custom(format!("crawl.{error}")))
}
