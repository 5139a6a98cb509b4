//! The scheduler's own certificate authority. The scheduler uses TLS unless it listens on loopback.
//!
//! The authority is made once, in `DIR/tls`. It is valid for ten years, because agents pin the
//! SHA-256 of its certificate: after a replacement, every agent must be enrolled again. The
//! server's certificate, for [`DOMAIN`] and the scheduler's other names, is issued anew at each
//! start and long before it expires. Open connections keep their certificate. The server also sends
//! the authority's certificate, so that an agent that knows only the authority's fingerprint can
//! verify the chain. All schedulers of a database must have the same authority.

mod authority;
mod certificate_names;
mod server_certificate;
mod server_config;
mod validity;

pub(in crate::app) use authority::{AUTHORITY_WARNED_BEFORE, CA, CA_KEY, NEW_AUTHORITY};
pub use authority::{claim_authority, fingerprint};
pub(in crate::app) use certificate_names::certificate_names;
pub(in crate::app) use server_certificate::RENEWED_BEFORE;
pub use server_certificate::{DOMAIN, Leaf, RENEWAL_PERIOD};
pub use server_config::{ServerTls, install_crypto, prepare};
pub(in crate::app) use validity::validity;
