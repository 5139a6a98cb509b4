//! One scheduler process: its startup, its files and database, and its shutdown.

pub(crate) mod address;
pub(crate) mod backup;
pub mod client_file;
pub(crate) mod data_dir;
pub(crate) mod doctor;
pub mod exit;
pub mod operator_token;
pub mod postgres;
pub(crate) mod run;
pub mod tls;
pub mod token_rotation;
pub(crate) mod up;
