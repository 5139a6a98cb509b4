//! The beacon: a small HTTP server at which other agents measure their round trip to this agent.
//! The beacon answers HEAD and GET with 204, without a body.

use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};

use super::listener::Listener;
use crate::config::Config;

/// Binds the address of the configuration; `None` if the agent has no beacon.
pub(super) async fn bind(config: &Config) -> anyhow::Result<Option<Listener>> {
    if !config.beacon.enabled {
        return Ok(None);
    }
    let listen = config.beacon.listen;
    let beacon = Listener::bind(listen, reply).await;
    let beacon = beacon.with_context(|| {
        format!("bind the beacon to {listen}; set beacon.listen to a free address, or beacon.enabled to false")
    })?;
    Ok(Some(beacon))
}

pub(crate) fn reply(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = match *request.method() {
        Method::HEAD | Method::GET => StatusCode::NO_CONTENT,
        _ => StatusCode::METHOD_NOT_ALLOWED,
    };
    response
}
