//! Elects landmarks, explains how much each is worth, and replaces a lost one.

pub(super) mod election_and_replacement;
pub(super) mod eligibility_and_cost;
pub(super) mod landmark_worth;
