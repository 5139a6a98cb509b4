//! Web servers, name servers and certificates on loopback, for tests.

pub(crate) use certificates::TestCertificate;
pub(crate) use encoders::{ENCODERS, brotli, deflate, gzip, zstd};
pub(crate) use name_server::{DnsAnswer, TestNames};
pub(crate) use replies::{Reply, ServerAction, answer, encoded, html, ok_after, page, redirect, send, status, stuck};
pub(crate) use request_context::context;
pub(crate) use stored_pages::{files, store_config, stored_lines};
pub(crate) use web_server::{SeenRequest, TestServer};

#[cfg(test)]
mod certificates;
#[cfg(test)]
mod encoders;
#[cfg(test)]
mod name_server;
#[cfg(test)]
mod replies;
#[cfg(test)]
mod request_context;
#[cfg(test)]
pub(crate) mod scheduler;
#[cfg(test)]
mod stored_pages;
#[cfg(test)]
mod web_server;
