//! The server: services, limits, TLS and shutdown.
//!
//! Handlers are thin: a request becomes domain values, one call into the store decides, the answer becomes a message.
//! Proto types never leave this module.

pub mod auth;
pub mod convert;
pub mod fleet;
pub mod reports;
pub mod sites;
pub mod status;

#[cfg(test)]
mod operator_tests;

/// How agents reach and recognise this scheduler.
#[derive(Debug, Clone)]
pub struct Identity {
    /// As agents dial it: http on loopback, else https.
    pub scheduler_url: String,
    /// SHA-256 of the CA certificate, hexadecimal; none in plaintext.
    pub ca_fingerprint: Option<String>,
}
