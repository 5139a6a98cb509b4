//! One scheduler process: its startup, its files and database, and its shutdown.

pub(crate) mod address;
pub(crate) mod backup;
pub mod client_file;
pub(crate) mod data_dir;
pub(crate) mod database_watch;
pub(crate) mod disk;
pub(crate) mod doctor;
pub mod exit;
pub(crate) mod geoip;
pub mod operator_token;
pub mod postgres;
pub(crate) mod run;
pub mod secret;
pub mod tls;
pub mod token_rotation;
pub(crate) mod up;
