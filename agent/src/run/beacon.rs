//! The beacon: a small HTTP server at which other agents measure their round trip to this agent.
//! The beacon answers HEAD and GET with 204, without a body.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};

pub(crate) fn reply(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = match *request.method() {
        Method::HEAD | Method::GET => StatusCode::NO_CONTENT,
        _ => StatusCode::METHOD_NOT_ALLOWED,
    };
    response
}
