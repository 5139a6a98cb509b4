//! Measures the round trip to a host: `probe::http` and `probe::icmp` send, `probe::schedule` decides what comes next,
//! `probe::weighted_mean` sums up, `probe::settle` finds out at which origin a site answers.

pub mod settle;
