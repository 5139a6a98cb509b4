//! One scheduler process: how it starts, what it needs around it, and how it ends.

pub(crate) mod backup;
pub(crate) mod data_dir;
pub(crate) mod database;
pub mod exit;
pub(crate) mod geoip;
pub mod operator;
pub mod postgres;
pub(crate) mod run;
pub mod secret;
pub mod tls;
pub(crate) mod up;
