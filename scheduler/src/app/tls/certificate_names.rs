//! Decides for which host names and addresses the scheduler's certificate is valid.

use std::net::SocketAddr;

use crate::app::address::{AdvertisedAddress, host_name};

/// The names in the server's certificate besides [`DOMAIN`](super::DOMAIN).
pub(in crate::app) fn certificate_names(address: SocketAddr, advertise: Option<&AdvertisedAddress>) -> Vec<String> {
    let mut names: Vec<String> = advertise.map(|advertised| advertised.host.clone()).into_iter().collect();
    if address.ip().is_unspecified() {
        names.extend(host_name());
        names.extend(["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()]);
    } else {
        names.push(address.ip().to_string());
    }
    names.dedup();
    names
}
