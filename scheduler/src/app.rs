//! One scheduler process: its startup, its files and database, and its shutdown.

pub(crate) mod address;
pub(crate) mod backup;
pub mod client_file;
pub(crate) mod data_dir;
pub(crate) mod doctor;
pub mod exit;
mod greeting;
pub mod operator_token;
mod own_postgres;
pub mod postgres;
pub(crate) mod run;
pub(crate) mod shell_words;
pub(crate) mod start_options;
pub mod tls;
pub mod token_rotation;
pub(crate) mod up;
