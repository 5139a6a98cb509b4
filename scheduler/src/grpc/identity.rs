//! The identity tells agents how to reach and recognise this scheduler.

/// How agents reach and recognise this scheduler.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The URL to which agents connect: http on loopback, else https.
    pub scheduler_url: String,
    /// SHA-256 of the CA certificate, hexadecimal; `None` without TLS.
    pub ca_fingerprint: Option<String>,
}
