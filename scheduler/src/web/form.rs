//! Submitted forms and queries, and the code that proves that a form comes from a signed-in
//! operator's page.

use axum::http::Uri;
use maud::{Markup, html};
use url::form_urlencoded;

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
