//! What to crawl: a site, and the policy that applies to it.

use super::budget::Policy;
use crate::net::origin::Origin;

#[derive(Debug, Clone)]
pub struct Job {
    /// The site as submitted.
    pub name: String,
    /// The site's origin. If unknown, the crawl finds it first.
    pub origin: Option<Origin>,
    pub policy: Policy,
    /// Number of pages that the site's last crawl found, if known.
    pub last_pages: Option<u32>,
}
