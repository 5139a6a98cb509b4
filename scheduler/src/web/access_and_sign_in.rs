//! The checks that every request must pass: who may read a page, and who may change something.
//! Signs browsers in and out.
//!
//! Requests that change something must come from a page of the same origin, and must contain the
//! code from that page's forms. On loopback, only requests to local names are served, so that no
//! page of another origin can read the dashboard through a name that resolves to 127.0.0.1 (DNS
//! rebinding).
//!
//! A browser signs in with the operator's token and gets a cookie. The cookie contains its expiry
//! time, a random number, and a message authentication code over the time and the number. The key
//! of the code is the stored hash of the token, so every scheduler of the database can check the
//! cookie, although no cookie is stored. The cookie becomes invalid when the token does. Forms
//! contain a second code, computed from the cookie.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, HeaderName, HeaderValue, ORIGIN, SET_COOKIE};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use maud::html;
use ring::hmac;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::Web;
use super::page_layout::{self, Form, FormCode, PageError, Visitor, failure, see_other};
use crate::Scheduler;
use crate::config::DashboardConfig;
use crate::grpc::auth::{self, peer};
use crate::grpc::port::connections::Connection;
use crate::grpc::port::guesses::Guess;
use crate::grpc::port::refusals::Refused;
use crate::machine::clock::now;
use crate::machine::secret::{Secret, SecretHash, hex};
use crate::store;
use crate::store::settings::{self, OperatorTokens};

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
    if visitor != Visitor::Guest
        && let Some(connection) = request.extensions().get::<Connection>()
    {
        connection.vouch();
    }
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
        return Err(see_other(&page_layout::path("/sign-in?to=", to)));
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
        true => failure(error),
        false => PageError::new(error.code(), error.message()).into_response(),
    }
}

/// Determines who sent a request: an operator, by cookie or token, or else a guest.
async fn visitor(web: &Web, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<Visitor, PageError> {
    if headers.contains_key(AUTHORIZATION) {
        let presented = auth::presented(headers).map_err(Status::from)?;
        checked(&web.scheduler, presented, peer).await?;
        return Ok(Visitor::Operator(FormCode(String::new())));
    }
    let seconds = now().timestamp();
    let cookie = cookie(headers, cookie_name(web.tls));
    let Some(cookie) = cookie.filter(|cookie| ends(cookie).is_some_and(|ends| seconds < ends)) else {
        return Ok(Visitor::Guest);
    };
    let Scheduler { operators, port, .. } = &web.scheduler;
    let looking_up = async {
        let tokens = settings::operator_tokens(&mut *operators.read("check cookie").await?).await?;
        keys(&tokens).find_map(|key| form_code(&key, cookie, seconds)).ok_or(CookieError::Wrong)
    };
    match port.guesses.check(Refused::Cookie, peer, &SecretHash::of(cookie), looking_up).await {
        Ok(code) => Ok(Visitor::Operator(FormCode(code))),
        // A cookie from before the token was replaced is no mistake of the browser's user.
        Err(wrong) if wrong.code() == Code::Unauthenticated => Ok(Visitor::Guest),
        Err(failed) => Err(failed.into()),
    }
}

/// Checks a presented token of the operator.
async fn checked(
    Scheduler { operators, port, .. }: &Scheduler,
    presented: SecretHash,
    peer: Option<IpAddr>,
) -> Result<auth::Operator, Status> {
    let looking_up = async { auth::operator(&mut *operators.read("check operator token").await?, presented).await };
    port.guesses.check(Refused::OperatorToken, peer, &presented, looking_up).await
}

/// Why a browser's cookie is of no use.
#[derive(Debug, thiserror::Error)]
enum CookieError {
    #[error("the cookie is wrong: sign in again")]
    Wrong,
    #[error("look up the operator's token")]
    Store(#[from] store::Error),
}

impl From<CookieError> for Status {
    fn from(error: CookieError) -> Self {
        match error {
            CookieError::Wrong => Self::unauthenticated(error.to_string()),
            CookieError::Store(error) => error.into(),
        }
    }
}

impl Guess for CookieError {
    fn is_wrong(&self) -> bool {
        matches!(self, Self::Wrong)
    }
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

/// The time for which a browser stays signed in: a working day.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);

/// The keys of valid cookies: the hash of the present token, and the hash of the former token while
/// that token is still valid.
pub(super) fn keys(tokens: &OperatorTokens) -> impl Iterator<Item = SecretHash> {
    let former = tokens.former.as_ref().filter(|former| former.good).map(|former| former.hash);
    tokens.in_force.into_iter().chain(former)
}

/// Makes a new cookie for the holder of the token with this hash. `ends` is the expiry time.
fn issue(hash: &SecretHash, ends: i64) -> std::io::Result<String> {
    let signed = format!("{ends}.{}", Secret::generate()?.reveal());
    let code = hmac::sign(&key(hash), format!("session {signed}").as_bytes());
    Ok(format!("{signed}.{}", hex(code.as_ref())))
}

/// Returns the code that a cookie's holder must send in forms; `None` if the cookie is not valid at
/// this time (Unix seconds).
fn form_code(hash: &SecretHash, cookie: &str, seconds: i64) -> Option<String> {
    let (signed, code) = cookie.rsplit_once('.')?;
    let ends = ends(cookie)?;
    let expected = hmac::sign(&key(hash), format!("session {signed}").as_bytes());
    // Hashes are compared in constant time, so the time does not show how much of the code is
    // right.
    let right = SecretHash::of(code) == SecretHash::of(&hex(expected.as_ref()));
    (right && seconds < ends).then(|| hex(hmac::sign(&key(hash), format!("form {cookie}").as_bytes()).as_ref()))
}

/// The expiry time that a cookie states (Unix seconds).
fn ends(cookie: &str) -> Option<i64> {
    cookie.split('.').next()?.parse().ok()
}

fn key(hash: &SecretHash) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, hash.as_bytes())
}

/// The name of the cookie. Browsers accept a cookie with the prefix `__Host-` only over TLS, and
/// only for this host.
const fn cookie_name(tls: bool) -> &'static str {
    if tls { "__Host-landfall" } else { "landfall" }
}

pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let sent = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = sent.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
}

fn set_cookie(tls: bool, value: &str, lifetime: Duration) -> String {
    let secure = if tls { "; Secure" } else { "" };
    let seconds = lifetime.as_secs();
    format!("{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}", cookie_name(tls))
}

pub(super) async fn sign_in_form(uri: Uri) -> Html<String> {
    sign_in_page(Form::of_query(&uri).field("to"), None)
}

fn sign_in_page(to: &str, error: Option<&str>) -> Html<String> {
    let body = html! {
        @if let Some(error) = error { p.message role="alert" { (error) } }
        p { "Sign in with the operator's token: it is in the file " code { "operator-token" } " of the scheduler's data directory." }
        form.card method="post" action="/sign-in" {
            input type="hidden" name="to" value=(to);
            label for="token" { "Operator's token" }
            input id="token" name="token" type="password" autocomplete="current-password" required autofocus maxlength="200";
            button type="submit" { "Sign in" }
        }
    };
    page_layout::bare("Sign in", &body)
}

/// Checks the token in the form. If it is right, the browser gets a cookie.
pub(super) async fn sign_in(
    State(web): State<Web>,
    Extension(form): Extension<Form>,
    request: Request,
) -> Result<Response, PageError> {
    let to = Some(form.field("to")).filter(|to| is_own_path(to)).unwrap_or("/");
    let presented = SecretHash::of(form.field("token").trim());
    if let Err(refused) = checked(&web.scheduler, presented, peer(request.extensions())).await {
        let error = PageError::from(refused);
        return Ok((error.code(), sign_in_page(to, Some(error.message()))).into_response());
    }
    let ends = now().timestamp().saturating_add_unsigned(LIFETIME.as_secs());
    let cookie = issue(&presented, ends)
        .map_err(|error| PageError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("draw a number: {error}")))?;
    Ok(with_cookie(see_other(to), &set_cookie(web.tls, &cookie, LIFETIME)))
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(SET_COOKIE, value);
    }
    response
}

/// Whether a path leads to this server. A path such as `//host` would lead to another server.
fn is_own_path(path: &str) -> bool {
    path.starts_with('/') && !path.starts_with("//") && !path.contains(['\\', '\r', '\n']) && path.is_ascii()
}

pub(super) async fn sign_out(State(web): State<Web>) -> Response {
    with_cookie(see_other("/sign-in"), &set_cookie(web.tls, "", Duration::ZERO))
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

    #[test]
    fn a_cookie_holds_for_one_token_until_its_end() {
        let (token, other) = (SecretHash::of("a"), SecretHash::of("b"));
        let cookie = issue(&token, 1_000).unwrap();
        let code = form_code(&token, &cookie, 999).unwrap();
        assert_eq!(form_code(&token, &cookie, 999), Some(code.clone()));
        assert_eq!(form_code(&token, &cookie, 1_000), None, "it has ended");
        assert_eq!(form_code(&other, &cookie, 999), None, "the token was replaced");
        assert_eq!(form_code(&token, &cookie.replacen("1000", "9000", 1), 999), None, "its end was changed");
        let second = issue(&token, 1_000).unwrap();
        assert_ne!(form_code(&token, &second, 999), Some(code), "a form of another session is refused");
        for bad in ["", ".", "1000", "1000.a", "x.y.z", "99999999999999999999.a.b"] {
            assert_eq!(form_code(&token, bad, 0), None, "{bad}");
        }
    }

    #[test]
    fn cookies_are_hardened() {
        let plain = set_cookie(false, "v", Duration::from_secs(60));
        assert_eq!(plain, "landfall=v; Path=/; HttpOnly; SameSite=Strict; Max-Age=60");
        assert_eq!(
            set_cookie(true, "v", Duration::ZERO),
            "__Host-landfall=v; Path=/; HttpOnly; SameSite=Strict; Max-Age=0; Secure"
        );
        let sent = headers(&[("cookie", "a=b; landfall=1.2.3; c")]);
        assert_eq!((cookie(&sent, "landfall"), cookie(&sent, "__Host-landfall")), (Some("1.2.3"), None));
    }

    #[test]
    fn nobody_is_sent_to_another_server() {
        assert!(is_own_path("/") && is_own_path("/map?epoch=3"));
        for bad in ["", "//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nset-cookie: x", "/秋"] {
            assert!(!is_own_path(bad), "{bad:?}");
        }
    }
}
