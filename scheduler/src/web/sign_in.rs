//! Signing in and out.
//!
//! A browser signs in with the operator's token and gets a cookie. The cookie contains its expiry
//! time, a random number, and a message authentication code over the time and the number. The key
//! of the code is the stored hash of the token, so every scheduler of the database can check the
//! cookie, although no cookie is stored. The cookie becomes invalid when the token does. Forms
//! contain a second code, computed from the cookie.

use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::http::header::{COOKIE, HeaderValue, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{Html, IntoResponse, Response};
use maud::html;
use ring::hmac;

use super::Web;
use super::error::PageError;
use super::form::Form;
use super::page_frame;
use crate::Scheduler;
use crate::grpc::auth::{self, peer};
use crate::machine::clock::now;
use crate::machine::secret::{Secret, SecretHash, hex};
use crate::store;
use crate::store::settings::OperatorTokens;

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
pub(super) fn form_code(hash: &SecretHash, cookie: &str, seconds: i64) -> Option<String> {
    let (signed, code) = cookie.rsplit_once('.')?;
    let ends: i64 = signed.split('.').next()?.parse().ok()?;
    let expected = hmac::sign(&key(hash), format!("session {signed}").as_bytes());
    // Hashes are compared in constant time, so the time does not show how much of the code is
    // right.
    let right = SecretHash::of(code) == SecretHash::of(&hex(expected.as_ref()));
    (right && seconds < ends).then(|| hex(hmac::sign(&key(hash), format!("form {cookie}").as_bytes()).as_ref()))
}

fn key(hash: &SecretHash) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, hash.as_bytes())
}

/// The name of the cookie. Browsers accept a cookie with the prefix `__Host-` only over TLS, and
/// only for this host.
pub(super) const fn cookie_name(tls: bool) -> &'static str {
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

pub(super) fn see_other(to: &str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, to.to_owned())]).into_response()
}

pub(super) async fn form(uri: Uri) -> Html<String> {
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
    page_frame::bare("Sign in", &body)
}

/// Checks the token in the form. If it is right, the browser gets a cookie.
pub(super) async fn sign_in(
    State(web): State<Web>,
    Extension(form): Extension<Form>,
    request: Request,
) -> Result<Response, PageError> {
    let Scheduler { pool, wrong_tokens, .. } = &web.scheduler;
    let to = Some(form.field("to")).filter(|to| is_own_path(to)).unwrap_or("/");
    let presented = SecretHash::of(form.field("token").trim());
    let known = auth::operator(&mut *store::acquire(pool).await?, presented).await;
    if let Err(refused) = known {
        let error = PageError::from(wrong_tokens.refuse(refused, peer(request.extensions())).await);
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
    use axum::http::HeaderName;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
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
