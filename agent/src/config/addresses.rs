//! Reads name servers and networks from settings.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize as _, Deserializer};

use crate::net::guard::parse_network;

const DNS_PORT: u16 = 53;

/// Parses `address` or `address:port`.
pub fn parse_name_server(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse::<SocketAddr>();
    with_port
        .or_else(|_| text.parse::<IpAddr>().map(|addr| SocketAddr::new(addr, DNS_PORT)))
        .map_err(|_| format!("'{text}' is not an address or address:port"))
}

pub(super) fn name_server<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| parse_name_server(&text)).transpose().map_err(serde::de::Error::custom)
}

pub(super) fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| parse_network(text)).collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}
