//! Why a scheduler cannot be spoken to, in words for people.

use std::error::Error;
use std::iter::successors;

/// What is wrong: the innermost cause, for the layers above it say "transport error"; or what answers there instead of a scheduler.
pub(crate) fn why(error: &(dyn Error + 'static)) -> String {
    if let Some(problem) = other_protocol(error) {
        return problem.to_owned();
    }
    successors(Some(error), |&cause| cause.source()).last().map(ToString::to_string).unwrap_or_default()
}

/// What is wrong with something that answers and does not speak as a scheduler does; `None` where the network failed.
fn other_protocol(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut tls = None;
    let failed = successors(Some(error), |&cause| cause.source()).any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        // What it wraps is not among its causes.
        let inner: Option<&(dyn Error + 'static)> = io.and_then(std::io::Error::get_ref).map(|inner| inner as _);
        tls = inner.unwrap_or(cause).downcast_ref::<rustls::Error>().cloned();
        tls.is_some() || io.is_some()
    });
    match tls {
        Some(rustls::Error::InvalidMessage(_)) => {
            Some("what answers there does not speak TLS: is it http://, or another port?")
        }
        Some(rustls::Error::InvalidCertificate(_)) => {
            Some("what answers there has a certificate of another authority than the scheduler's")
        }
        Some(_) => Some("what answers there refuses this TLS session"),
        None if failed => None,
        None => Some("what answers there does not speak gRPC: is it https://, or another port?"),
    }
}
