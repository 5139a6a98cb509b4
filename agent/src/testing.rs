//! Web servers, name servers and certificates on loopback, for tests.

pub(crate) use name_server::{DnsAnswer, TestNames, context};
pub(crate) use stored_pages::{files, store_config, stored_lines};
pub(crate) use web_server::{
    ENCODERS, Reply, SeenRequest, ServerAction, TestCertificate, TestServer, answer, brotli, deflate, encoded, gzip,
    html, ok_after, page, redirect, send, status, stuck, zstd,
};

#[cfg(test)]
mod name_server;
#[cfg(test)]
pub(crate) mod scheduler;
#[cfg(test)]
mod stored_pages;
#[cfg(test)]
mod web_server;
