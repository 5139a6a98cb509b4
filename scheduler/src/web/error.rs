//! Converts the services' errors to pages.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::html;
use tonic::{Code, Status};

use super::page_frame;

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
        (self.code, page_frame::bare(self.code.canonical_reason().unwrap_or("Error"), &body)).into_response()
    }
}
