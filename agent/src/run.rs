//! Runs an agent: its beacon, its metrics and its session.

pub(crate) use start_and_stop::run;

pub(crate) mod beacon;
mod connections;
mod greeting;
pub(crate) mod listener;
mod metrics_server;
mod registration;
mod request_base;
mod start_and_stop;
