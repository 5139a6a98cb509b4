//! The refined tier: predicts the distance from every agent to a site, and the uncertainty of this
//! prediction.
//!
//! The plain tier gives a site one point. The refined tier gives a site a cloud of possible points,
//! each weighted by how well it explains the measurements. The refined tier also corrects
//! predictions by the map's errors between nearby agents. A prediction consists of a median for
//! display, an expectation for ranking, and a spread. Ingredients of the map can be switched off
//! ([`RefinedSwitches`]) to measure how much each improves predictions
//! (`docs/evaluation/accuracy.md`). The modules are:
//!
//! - [`map`]: the parts of the map of one epoch, and the choice of its constants by agents that are
//!   located as if they were sites;
//! - [`layout`]: the coordinates of agents, in 3, 4 and 5 dimensions;
//! - [`kriging`]: the residuals of the mesh, as a Gaussian process over pairs;
//! - [`cloud`]: the possible points of a site, and their weights by the site's measurements;
//! - [`site_prediction_and_confirmers`]: the predictions for a site.

mod cloud;
mod kriging;
mod layout;
mod map;
mod site_prediction_and_confirmers;

pub use map::Refined;
pub(super) use map::{HeldOut, MOST_AGENTS, Prepared};
pub use site_prediction_and_confirmers::{Posterior, PredictedRtt, Prediction, SitePlace};
