//! The dashboard's style sheet and script, which are part of the program.

use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use super::error::PageError;

const FILES: [(&str, &str, &str); 3] = [
    (
        "style.css",
        "text/css; charset=utf-8",
        concat!(include_str!("../plot/style.css"), include_str!("assets/style.css")),
    ),
    ("live.js", "text/javascript; charset=utf-8", include_str!("assets/live.js")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

pub(super) async fn serve(Path(file): Path<String>) -> Response {
    match FILES.iter().find(|(name, ..)| *name == file) {
        // Browsers must ask the server each time whether a cached file is still valid, because
        // another version of the program may have different files.
        Some((_, kind, text)) => {
            (StatusCode::OK, [(CONTENT_TYPE, *kind), (CACHE_CONTROL, "no-cache")], *text).into_response()
        }
        None => PageError::unknown().into_response(),
    }
}
