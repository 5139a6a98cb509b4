//! Elects landmarks, explains how much each is worth, and replaces a lost one.

mod city_and_carrier;
pub(super) mod eligibility;
pub(super) mod improve;
pub(super) mod k_medoids;
pub(super) mod landmark_worth;
mod nominees;
mod reason;
pub(super) mod replace;

pub use nominees::Nominee;
pub use reason::ElectedLandmark;
