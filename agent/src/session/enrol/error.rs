//! Why an enrolment failed.

use std::path::PathBuf;

use crate::config::{BadSchedulerUrl, ConfigError};

#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    #[error(transparent)]
    Scheduler(#[from] BadSchedulerUrl),
    /// An https URL was given without the fingerprint of the scheduler's authority.
    #[error("an https scheduler requires --ca-fingerprint")]
    NoFingerprint,
    #[error("--ca-fingerprint must be 64 hexadecimal digits")]
    BadFingerprint,
    #[error(
        "{0} does not present a certificate with that fingerprint: it is another scheduler, or someone intercepts the \
         connection"
    )]
    WrongFingerprint(String),
    #[error("connect to the scheduler at {scheduler}: {reason}")]
    Connect { scheduler: String, reason: String },
    #[error("the scheduler refused the token: {0}")]
    Refused(String),
    #[error("{0} already contains an enrolled agent; --force replaces its credential and keeps the other settings")]
    Enrolled(PathBuf),
    #[error("write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    /// The existing and the new settings together form an invalid configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
}
