//! Learns corrections to the round trips between agents and sites from crawls.
//!
//! Because the round trip of a crawl is noisy and becomes outdated, the estimate for an agent and a
//! site is a weighted mean of the logarithms of the prior (the map's prediction or the probes'
//! measurement) and of the crawls' round trips. The weight of a prediction is computed from its
//! spread. The weight of a crawl is computed from [`CRAWL_SPREAD`] and the crawl's age. The
//! weighted mean is the posterior mean of a normal distribution with a conjugate prior (Gelman et
//! al., "Bayesian data analysis", 2013, section 2.5).
//!
//! If the map errs for an agent's crawled sites, it probably errs in the same way for the agent's
//! other sites. Predictions are therefore corrected in two steps. First, all predictions for the
//! agent are corrected by the agent's mean crawl residual. The mean includes `PRIOR_RESIDUALS`
//! residuals of zero, which keep it small while there are few crawls. Then the crawl residuals of
//! similar sites correct the agent's predictions further (`alike`). Pages take longer than probes,
//! by about the same factor for all agents and sites. Before both corrections, the crawls' round
//! trips are divided by this factor.

pub(crate) mod contradiction;
mod corrections;
mod crawl_residual;
mod crawls_read;
mod estimate;
pub(super) mod explore;
pub(super) mod similar_sites;

pub use corrections::LearnedCorrections;
pub use crawl_residual::{CRAWL_SPREAD, CrawlResidual, Prefix, weight};
pub use crawls_read::{CRAWLS_LEARNED, CRAWLS_OF_A_SITE, MOST_RESIDUALS_OF_AN_AGENT, RESIDUALS};
pub use estimate::{CrawlObservation, PROBE_SPREAD, UNKNOWN_SPREAD, believed, measured_by_crawls, teach};
pub use similar_sites::SimilarCrawls;
