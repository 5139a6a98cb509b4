//! The checks that every request must pass: who may read a page, and who may change something.
//!
//! Requests that change something must come from a page of the same origin, and must contain the
//! code from that page's forms. On loopback, only requests to local names are served, so that no
//! page of another origin can read the dashboard through a name that resolves to 127.0.0.1 (DNS
//! rebinding).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, ORIGIN};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;
use tonic::Status;

use super::error::PageError;
use super::form::{Form, FormCode, Visitor};
use super::sign_in::{cookie, cookie_name, form_code, keys, see_other};
use super::{Web, elements};
use crate::Scheduler;
use crate::config::DashboardConfig;
use crate::grpc::auth::{self, peer};
use crate::machine::clock::now;
use crate::store;
use crate::store::settings;

/// Maximum size of a submitted form in bytes.
const MAX_FORM: usize = 16 << 10;
/// Maximum time until the whole form has arrived.
const FORM_PATIENCE: Duration = Duration::from_secs(10);

/// Passes a request on to its handler if it is permitted; otherwise answers the request itself.
/// Handlers find the [`Visitor`] in the request's extensions, and also the [`Form`] if the request
/// changes something.
pub(super) async fn admit(State(web): State<Web>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if !auth::is_page(path) {
        return Status::unimplemented("this scheduler has no such call").into_http();
    }
    let needs_database = !path.starts_with("/static/") && path != "/health/live";
    let mut response = match admitted(&web, &mut request).await {
        Ok(()) if !needs_database => next.run(request).await,
        Ok(()) => {
            let answered = web.scheduler.wakes.database.while_it_answers(next.run(request)).await;
            answered.unwrap_or_else(|| PageError::away().into_response())
        }
        Err(refused) => refused,
    };
    secure(response.headers_mut());
    response
}

async fn admitted(web: &Web, request: &mut Request) -> Result<(), Response> {
    if !web.tls && !is_local(request.headers()) {
        let said = "this scheduler listens on loopback only: open it under the name localhost or 127.0.0.1";
        return Err(PageError::new(StatusCode::MISDIRECTED_REQUEST, said).into_response());
    }
    let path = request.uri().path().to_owned();
    let (api, health) = (path.starts_with("/api/") || path == "/metrics", path.starts_with("/health/"));
    if health || path.starts_with("/static/") {
        return Ok(());
    }
    let peer = peer(request.extensions());
    let visitor = visitor(web, request.headers(), peer).await.map_err(|error| refusal(api, &error))?;
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    let DashboardConfig { public, public_metrics } = web.scheduler.config.dashboard;
    let reads_freely = !changes && (public || path == "/metrics" && (public_metrics || !web.tls));
    let signs_in = path == "/sign-in";
    if visitor == Visitor::Guest && !reads_freely && !signs_in {
        if api {
            let said = "sign in, or send the operator's token";
            return Err(refusal(api, &PageError::new(StatusCode::UNAUTHORIZED, said)));
        }
        let to = if changes { "/" } else { request.uri().path_and_query().map_or("/", |to| to.as_str()) };
        return Err(see_other(&elements::path("/sign-in?to=", to)));
    }
    if changes {
        let form = form_sent(request, &visitor, signs_in).await.map_err(IntoResponse::into_response)?;
        request.extensions_mut().insert(form);
    }
    request.extensions_mut().insert(visitor);
    Ok(())
}

/// Reads the form of a request that changes something. The request is refused unless a page of the
/// same origin sent it. The form must contain the operator's [`FormCode`], except when signing in.
async fn form_sent(request: &mut Request, visitor: &Visitor, signs_in: bool) -> Result<Form, PageError> {
    let refuse = |why: &str| PageError::new(StatusCode::FORBIDDEN, why);
    if !is_same_origin(request.headers()) {
        return Err(refuse("the request came from a page of another site"));
    }
    let body = std::mem::replace(request.body_mut(), Body::empty());
    let form = match timeout(FORM_PATIENCE, to_bytes(body, MAX_FORM)).await {
        Ok(Ok(bytes)) => Form::parse(&bytes),
        Ok(Err(_)) => return Err(PageError::new(StatusCode::PAYLOAD_TOO_LARGE, "the form is too large")),
        Err(_) => return Err(PageError::new(StatusCode::REQUEST_TIMEOUT, "the form did not arrive in time")),
    };
    match visitor {
        _ if signs_in => Ok(form),
        Visitor::Operator(FormCode(code)) if !code.is_empty() && form.field("form") == code => Ok(form),
        _ => Err(refuse("the form is out of date: reload its page")),
    }
}

fn refusal(api: bool, error: &PageError) -> Response {
    match api {
        true => super::api::failure(error),
        false => PageError::new(error.code(), error.message()).into_response(),
    }
}

/// Determines who sent a request: an operator, by cookie or token, or else a guest.
async fn visitor(web: &Web, headers: &HeaderMap, peer: Option<SocketAddr>) -> Result<Visitor, PageError> {
    let Scheduler { pool, wrong_tokens, .. } = &web.scheduler;
    if headers.contains_key(AUTHORIZATION) {
        let presented = auth::presented(headers).map_err(Status::from)?;
        let known = auth::operator(&mut *store::acquire(pool).await?, presented).await;
        return match known {
            Ok(_) => Ok(Visitor::Operator(FormCode(String::new()))),
            Err(refused) => Err(wrong_tokens.refuse(refused, peer).await.into()),
        };
    }
    let Some(cookie) = cookie(headers, cookie_name(web.tls)) else { return Ok(Visitor::Guest) };
    let tokens = settings::operator_tokens(&mut *store::acquire(pool).await?).await?;
    let seconds = now().timestamp();
    let code = keys(&tokens).find_map(|key| form_code(&key, cookie, seconds));
    Ok(code.map_or(Visitor::Guest, |code| Visitor::Operator(FormCode(code))))
}

/// Whether the request was sent to a local name or a loopback address.
fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else {
        // HTTP/2 requests have the name in their URI. Browsers use HTTP/2 only over TLS, where
        // names are not checked.
        return true;
    };
    let name = host.rsplit_once(':').map_or(host, |(name, port)| if port.ends_with(']') { host } else { name });
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Whether a page of the same origin sent the request, as far as the browser's headers show.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let site = headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
    let origin = text(&ORIGIN).map(|origin| origin.split_once("://").map_or(origin, |(_, host)| host));
    let host = text(&HOST);
    site.is_none_or(|site| site == "same-origin" || site == "none")
        && origin.is_none_or(|origin| host.is_none_or(|host| host == origin))
}

fn secure(headers: &mut HeaderMap) {
    let all = [
        (
            "content-security-policy",
            "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
             form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        ),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ];
    for (name, value) in all {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.entry("cache-control").or_insert(HeaderValue::from_static("no-store"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn on_loopback_only_local_names_are_served() {
        for (host, local) in [
            ("localhost:7171", true),
            ("LOCALHOST", true),
            ("127.0.0.1:7171", true),
            ("127.1.2.3", true),
            ("[::1]:7171", true),
            ("[::1]", true),
            ("evil.example:7171", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1:7171", false),
            ("", false),
        ] {
            assert_eq!(is_local(&headers(&[("host", host)])), local, "{host}");
        }
    }

    #[test]
    fn only_pages_of_this_origin_may_change_something() {
        let own = [("host", "localhost:7171"), ("origin", "http://localhost:7171"), ("sec-fetch-site", "same-origin")];
        assert!(is_same_origin(&headers(&own)) && is_same_origin(&headers(&[("host", "localhost:7171")])));
        for foreign in [
            [("host", "localhost:7171"), ("origin", "http://evil.example")],
            [("host", "localhost:7171"), ("origin", "null")],
            [("host", "localhost:7171"), ("origin", "http://localhost:8080")],
            [("host", "localhost:7171"), ("sec-fetch-site", "cross-site")],
            [("host", "localhost:7171"), ("sec-fetch-site", "same-site")],
        ] {
            assert!(!is_same_origin(&headers(&foreign)), "{foreign:?}");
        }
    }
}
