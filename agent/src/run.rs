//! Runs the agent: its session, its beacon and its metrics' server.

pub(crate) mod beacon_and_metrics_server;
mod start_and_stop;

pub(crate) use start_and_stop::run;
