//! The layout of pages: the frame with the header, navigation and footer; sections, tables, charts
//! and bars; forms and queries, with the code that proves that a form comes from a signed-in
//! operator's page; and the services' errors as pages.

use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{StatusCode, Uri};
use axum::response::{Html, IntoResponse, Response};
use landfall_proto::json::rfc3339;
use maud::{DOCTYPE, Markup, html};
use serde::Serialize;
use tonic::{Code, Status};
use url::form_urlencoded;

use crate::cli::output::table::main_columns;
use crate::cli::output::{Row, Tone, View};
use crate::machine::clock::now;

/// The pages in the navigation: path and title.
const NAVIGATION: [(&str, &str); 5] =
    [("/", "Overview"), ("/map", "Map"), ("/fleet", "Fleet"), ("/batches", "Batches"), ("/trends", "Trends")];

/// A page without navigation.
pub(super) fn bare(title: &str, body: &Markup) -> Html<String> {
    document(title, &html! { main { h1 { (title) } (body) } })
}

/// The parts of a page.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub(super) title: String,
    /// The path of the page's entry in the navigation.
    pub(super) section: &'static str,
    /// The buttons, which only operators see.
    pub(super) actions: Markup,
    /// The part that is updated while the page is open.
    pub(super) live: Markup,
}

impl Page {
    /// Renders the whole document. `path` is the page's own path, which the browser needs
    /// for updates.
    pub(super) fn document(&self, visitor: &Visitor, path: &str) -> Html<String> {
        let current = |section: &str| (section == self.section).then_some("page");
        document(
            &self.title,
            &html! {
                a.skip href="#content" { "Skip to content" }
                header.bar {
                    a.brand href="/" { "Landfall" }
                    nav aria-label="Pages" { @for (path, title) in NAVIGATION {
                        a href=(path) aria-current=[current(path)] { (title) }
                    } }
                    form.search action="/site" role="search" {
                        input type="search" name="name" placeholder="Site" aria-label="Find a site" required maxlength="300";
                    }
                    @match visitor {
                        Visitor::Operator(form) => form method="post" action="/sign-out" {
                            (form.field()) button type="submit" { "Sign out" }
                        },
                        Visitor::Guest => a href="/sign-in" { "Sign in" },
                    }
                }
                main id="content" {
                    h1 { (self.title) }
                    p.lost id="lost" role="status" hidden { "The scheduler does not answer. This page shows what was last known, and goes on by itself." }
                    (self.actions)
                    div id="live" data-page=(path) { (self.live) }
                }
                footer { p { "Landfall " (crate::VERSION) " · " span id="updated" { "updated " (rfc3339(now())) } } }
            },
        )
    }
}

fn document(title: &str, body: &Markup) -> Html<String> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Landfall" }
                link rel="icon" href="/static/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/static/style.css";
                script src="/static/live.js" defer {}
            }
            body { (body) }
        }
    };
    Html(page.into_string())
}

/// Maximum number of characters shown in a cell of a table. The tooltip contains the rest.
const LONGEST_CELL: usize = 160;

/// How rows are shown: only the main columns, with times relative to now.
pub(super) fn view() -> View {
    View { wide: false, columns: usize::MAX, now: now(), timeless: false, colors: false }
}

/// Converts a number for a chart, exactly up to 2^53.
pub(super) fn float(number: u64) -> f64 {
    number as f64
}

pub(super) fn section(title: &str, content: &Markup) -> Markup {
    html! { section.card { h2 { (title) } (content) } }
}

/// A chart. If it is wider than the screen, it can be scrolled with the keyboard.
pub(super) fn chart(label: &str, drawing: &Markup) -> Markup {
    html! { figure tabindex="0" role="region" aria-label=(label) { (drawing) } }
}

/// A table of rows. The first column links to the address that `href` returns for a row.
pub(super) fn table<R: Row>(caption: &str, rows: &[R], href: impl Fn(&R) -> Option<String>) -> Markup {
    let columns = main_columns(rows, &view());
    html! {
        div.scroll tabindex="0" role="region" aria-label=(caption) {
            table {
                thead { tr { @for (column, _) in &columns {
                    th scope="col" class=[column.right.then_some("n")] { (column.name) }
                } } }
                tbody { @for (index, row) in rows.iter().enumerate() { tr {
                    @for (place, (column, cells)) in columns.iter().enumerate() {
                        @let text = cells.get(index).map_or("", String::as_str);
                        @let tone = if column.toned { tone_class(row.tone()) } else { "" };
                        td class={ @if column.right { "n " } (tone) } title=[long(text)] {
                            @match href(row).filter(|_| place == 0) {
                                Some(href) => a href=(href) { (shortened(text)) },
                                None => (shortened(text)),
                            }
                        }
                    }
                } } }
            }
        }
    }
}

fn long(text: &str) -> Option<&str> {
    (text.chars().nth(LONGEST_CELL).is_some()).then_some(text)
}

fn shortened(text: &str) -> String {
    if long(text).is_none() {
        return text.to_owned();
    }
    text.chars().take(LONGEST_CELL).chain(['…']).collect()
}

const fn tone_class(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "",
        Tone::Good => "good",
        Tone::Pausing => "pausing",
        Tone::Bad => "bad",
    }
}

pub(super) fn tile(label: &str, figure: &str, detail: &str) -> Markup {
    html! { div.tile { span.label { (label) } b { (figure) } span { (detail) } } }
}

/// A bar that shows a share from 0 to 1, with a text for screen readers.
pub(super) fn share_bar(share: f64, text: &str) -> Markup {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    html! { progress max="1" value=(format!("{share:.4}")) aria-label=(text) { (text) } }
}

/// A path that ends with a name, which may contain any character.
pub(super) fn path(head: &str, name: &str) -> String {
    // Characters outside this set must be escaped in a path.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escaped =
        name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") });
    format!("{head}{}", escaped.collect::<String>())
}

/// The kind of caller that requests a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Visitor {
    Guest,
    Operator(FormCode),
}

/// The code in the forms of a signed-in operator. The code is empty for callers that send the token
/// itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FormCode(pub(super) String);

impl FormCode {
    pub(super) fn field(&self) -> Markup {
        html! { input type="hidden" name="form" value=(self.0); }
    }
}

/// The fields of a submitted form, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self(form_urlencoded::parse(bytes).into_owned().collect())
    }

    /// The value of the first field with this name; empty if there is no such field.
    pub(super) fn field(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Parses the fields in the query of a URI.
    pub(super) fn of_query(uri: &Uri) -> Self {
        Self::parse(uri.query().unwrap_or_default().as_bytes())
    }
}

/// A button: its action, its title and what it does.
type Button = (&'static str, &'static str, &'static str);

/// The buttons of the page at `path`, which shows the object `name`. `done` is the action that led
/// to this page, if any.
pub(super) fn buttons(path: &str, name: &str, buttons: &[Button], form: &FormCode, done: &str) -> Markup {
    html! {
        @if let Some((_, title, _)) = buttons.iter().find(|(action, ..)| *action == done) {
            p.done role="status" { "Done: " (title.to_lowercase()) "." }
        }
        div.actions { @for (action, title, detail) in buttons {
            form method="post" action={ (path) "/" (action) } data-confirm={ (title) ": " (name) "? " (detail) } {
                (form.field())
                button type="submit" title=(detail) class=[(*action == "cancel").then_some("danger")] { (title) }
            }
        } }
    }
}

/// The reason why a page cannot be shown.
#[derive(Debug)]
pub(super) struct PageError {
    code: StatusCode,
    message: String,
}

impl PageError {
    pub(super) fn new(code: StatusCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn unknown() -> Self {
        Self::new(StatusCode::NOT_FOUND, "there is no such page")
    }

    /// The error if the database has not answered for some seconds.
    pub(super) fn away() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the database does not answer: try again")
    }

    pub(super) const fn code(&self) -> StatusCode {
        self.code
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }
}

impl From<Status> for PageError {
    fn from(status: Status) -> Self {
        let code = match status.code() {
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
            Code::FailedPrecondition | Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
            Code::Unauthenticated | Code::PermissionDenied => StatusCode::UNAUTHORIZED,
            Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(code, status.message())
    }
}

impl From<crate::store::Error> for PageError {
    fn from(error: crate::store::Error) -> Self {
        Status::from(error).into()
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let body = html! {
            p.message role="alert" { (self.message) }
            p { a href="/" { "Overview" } }
        };
        (self.code, bare(self.code.canonical_reason().unwrap_or("Error"), &body)).into_response()
    }
}

/// An error as a JSON document.
pub(super) fn failure(error: &PageError) -> Response {
    #[derive(Serialize)]
    struct Failure<'a> {
        error: &'a str,
    }
    let text = serde_json::to_string(&Failure { error: error.message() }).unwrap_or_default();
    (error.code(), Json(text)).into_response()
}

/// A JSON document.
pub(super) struct Json(pub(super) String);

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}

pub(super) fn see_other(to: &str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, to.to_owned())]).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_fits_into_a_path() {
        assert_eq!(path("/agents/", "tokyo-iij"), "/agents/tokyo-iij");
        assert_eq!(path("/site?name=", "https://a.cn:8080/?x&y"), "/site?name=https%3A%2F%2Fa.cn%3A8080%2F%3Fx%26y");
        assert_eq!(path("/agents/", "秋\"<"), "/agents/%E7%A7%8B%22%3C");
    }
}
