//! One scheduler process: its startup, its files and database, and its shutdown.

pub(crate) mod address;
pub(crate) mod backup;
pub mod certificate_authority;
pub(crate) mod data_dir;
pub(crate) mod doctor;
pub mod exit;
pub mod postgres;
pub(crate) mod run;
pub mod server_certificate;
pub(crate) mod start_options;
pub mod token_and_client_file;
