//! The values with which an operator enrols an agent.

use std::path::PathBuf;

/// What an operator passes to `landfall-agent enrol`.
#[derive(Debug, Clone)]
pub struct Enrolment {
    /// URLs of schedulers. The agent enrols at the first that responds, and stores all the URLs.
    pub schedulers: Vec<String>,
    pub token: String,
    /// SHA-256 of the authority's certificate (DER), in hexadecimal.
    pub ca_fingerprint: Option<String>,
    pub dir: PathBuf,
    pub contact_url: Option<String>,
    /// Whether to replace an existing enrolment. Other settings in `agent.toml` are kept.
    pub force: bool,
}
