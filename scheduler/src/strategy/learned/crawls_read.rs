//! Limits how many past crawls are read to learn from.

/// Number of an agent's newest crawls from which its speed is learned.
pub const CRAWLS_LEARNED: i64 = 40;
/// Maximum number of crawl residuals read per agent. With more than 100 connected agents, the limit
/// is lower: [`RESIDUALS`] divided by the number of agents.
pub const MOST_RESIDUALS_OF_AN_AGENT: i64 = 200;
/// Maximum number of crawl residuals read for all agents together. The total may exceed this limit,
/// because at least [`CRAWLS_LEARNED`] of each agent are read.
pub const RESIDUALS: i64 = 20_000;
/// Number of a site's newest crawls that are read. Older crawls are not needed: strategies try only
/// a few agents per site, so ten crawls include all these agents.
pub const CRAWLS_OF_A_SITE: i64 = 10;
