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
//! - [`map`]: the parts of the map of one epoch;
//! - [`layout`]: the coordinates of agents, in 3, 4 and 5 dimensions;
//! - [`gauss_newton`]: the method that moves agents to better places;
//! - [`kriging`]: the residuals of the mesh, as a Gaussian process over pairs;
//! - [`held_out`]: locates agents as if they were sites, to choose the constants of the kriging;
//! - [`penalty`]: the penalty added to predictions that are compared with measurements;
//! - [`cloud`]: the possible points of a site;
//! - [`weighted_points`]: the weights of these points by the site's measurements;
//! - [`posterior`]: the predictions for a site.

mod cloud;
mod confirmers;
mod gauss_newton;
mod held_out;
mod kriging;
mod layout;
mod map;
mod penalty;
mod posterior;
mod weighted_points;

pub(super) use held_out::{HeldOut, MOST_AGENTS, Prepared};
pub use map::Refined;
pub use posterior::{Posterior, Prediction};
