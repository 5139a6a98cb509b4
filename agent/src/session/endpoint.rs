//! How the agent connects to a scheduler, both to enrol and for every session: the time limit, and
//! the name in the scheduler's certificate.

use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::config::SchedulerUrl;

/// The name in the scheduler's certificate. The name does not depend on the scheduler's address.
pub const DOMAIN: &str = "landfall-scheduler";
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The endpoint of a scheduler. The connection uses TLS with the given authority (PEM), or
/// plaintext on loopback.
pub fn endpoint(scheduler: &SchedulerUrl, ca: Option<&str>) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(scheduler.url.to_string())?.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
    match ca {
        Some(ca) if scheduler.tls => {
            let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name(DOMAIN);
            endpoint.tls_config(tls)
        }
        _ => Ok(endpoint),
    }
}
