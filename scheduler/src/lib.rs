//! The Landfall scheduler, and the operator's commands.
//!
//! `model`, `gnp`, `strategy` and `site_list` are the pure core: they know no tokio, sqlx, tonic, clock or environment.
//! `store` is the only place that knows SQL; `grpc` and `tasks` meet in it and through [`wake::Wakes`].

pub mod model;
pub mod store;
pub mod tasks;
pub mod wake;
