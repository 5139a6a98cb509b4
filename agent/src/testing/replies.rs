//! What a test's web server sends.

use std::time::Duration;

use hyper::StatusCode;

/// One action of a server while it responds to a request.
#[derive(Clone)]
pub(crate) enum ServerAction {
    Send(Vec<u8>),
    /// Sends these bytes repeatedly until the client disconnects.
    Endless(Vec<u8>),
    /// Sends these bytes repeatedly, with pauses of this length.
    Drip(Duration, Vec<u8>),
    Pause(Duration),
    /// Waits until the client disconnects.
    Wait,
    /// Resets the connection.
    Reset,
    Close,
}

/// All actions with which a server responds to a request.
pub(crate) type Reply = Vec<ServerAction>;

pub(crate) fn send(text: impl AsRef<[u8]>) -> ServerAction {
    ServerAction::Send(text.as_ref().to_vec())
}

/// A complete response. Each line of `headers` ends in `\r\n`. HEAD requests get only the head.
pub(crate) fn answer(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Reply {
    let (status, body) = (StatusCode::from_u16(status).unwrap(), body.as_ref());
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n", body.len());
    vec![ServerAction::Send([head.as_bytes(), body].concat())]
}

pub(crate) fn status(status: u16) -> Reply {
    answer(status, "", "")
}

pub(crate) fn page(media_type: &str, body: impl AsRef<[u8]>) -> Reply {
    answer(200, &format!("content-type: {media_type}\r\n"), body)
}

pub(crate) fn html(body: impl AsRef<[u8]>) -> Reply {
    page("text/html; charset=utf-8", body)
}

pub(crate) fn encoded(coding: &str, body: impl AsRef<[u8]>) -> Reply {
    answer(200, &format!("content-type: text/html\r\ncontent-encoding: {coding}\r\n"), body)
}

pub(crate) fn redirect(to: &str) -> Reply {
    answer(302, &format!("location: {to}\r\n"), "")
}

/// Sends the beginning of a page, and then nothing more.
pub(crate) fn stuck(beginning: &str) -> Reply {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ntransfer-encoding: chunked\r\n\r\n";
    vec![send(format!("{head}{:x}\r\n{beginning}\r\n", beginning.len())), ServerAction::Wait]
}

pub(crate) fn ok_after(millis: u64) -> Reply {
    [vec![ServerAction::Pause(Duration::from_millis(millis))], status(200)].concat()
}
