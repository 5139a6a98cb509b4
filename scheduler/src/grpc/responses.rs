//! What holds for the answers of all calls: when their deadline ends them, how long the text of an
//! error may be, and how long a stranger's call may stay open.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tonic::Status;

use super::port::connections::StrangerCall;

/// Maximum length of an error's text in bytes, as it is encoded for the wire. Clients refuse
/// answers whose headers are longer than 8 or 16 KiB together.
const MAX_TEXT: usize = 4096;
/// What follows a text that was cut off: an ellipsis, encoded.
const CUT_OFF: &[u8] = b"%E2%80%A6";

/// Maximum time for which a stranger's call may be answered. Clients that follow the health of this
/// server without a token ask again afterwards.
const STRANGER_ANSWER: Duration = Duration::from_secs(300);

/// The time that a client gives the call; `None` without a valid deadline.
pub(super) fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Answers within the client's time; afterwards drops the work. An answer that is ready only after
/// that time is no answer, because the client no longer waits for it.
pub(super) async fn in_time(deadline: Option<Duration>, answering: impl Future<Output = Response>) -> Response {
    let Some(deadline) = deadline else { return answering.await };
    let due = Instant::now() + deadline;
    match tokio::time::timeout_at(due, answering).await {
        Ok(answer) if Instant::now() < due => answer,
        Ok(_) | Err(_) => Status::deadline_exceeded("the time that the client gave this call is over").into_http(),
    }
}

/// Cuts off a long error text in the answer. `call` counts as open until the whole answer is sent,
/// and is ended after a time.
pub(super) fn finished(mut answer: Response, call: Option<StrangerCall>) -> Response {
    shorten(answer.headers_mut());
    let limit = call.map(|call| (call, Box::pin(tokio::time::sleep(STRANGER_ANSWER))));
    answer.map(|body| Body::new(AnswerBody { body, limit, is_cut_off: false }))
}

/// The body of an answer, whose trailers have no long error text.
struct AnswerBody<C> {
    body: Body,
    /// A stranger's call, and when its answer ends at the latest.
    limit: Option<(C, Pin<Box<Sleep>>)>,
    is_cut_off: bool,
}

impl<C: Unpin> hyper::body::Body for AnswerBody<C> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.is_cut_off {
            return Poll::Ready(None);
        }
        if let Some((_, limit)) = &mut self.limit
            && limit.as_mut().poll(context).is_ready()
        {
            self.is_cut_off = true;
            let status = Status::unavailable("calls without a token end after five minutes: call again");
            let mut trailers = HeaderMap::new();
            let told = status.add_header(&mut trailers).map(|()| Frame::trailers(trailers));
            return Poll::Ready(Some(told.map_err(axum::Error::new)));
        }
        let mut frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(trailers) = frame.as_mut().and_then(|frame| frame.as_mut().ok()).and_then(Frame::trailers_mut) {
            shorten(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_cut_off || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn shorten(headers: &mut HeaderMap) {
    let Some(text) = headers.get_mut(Status::GRPC_MESSAGE) else { return };
    if let Cow::Owned(short) = shortened(text.as_bytes())
        && let Ok(short) = HeaderValue::from_bytes(&short)
    {
        *text = short;
    }
}

/// Cuts a percent-encoded text off between two characters.
fn shortened(encoded: &[u8]) -> Cow<'_, [u8]> {
    if encoded.len() <= MAX_TEXT {
        return Cow::Borrowed(encoded);
    }
    let mut end = MAX_TEXT - CUT_OFF.len();
    // A character begins neither within `%XX`, nor at a byte 10xxxxxx, which continues a character.
    let continues = |at: usize| {
        let after = |back: usize| at.checked_sub(back).is_some_and(|percent| encoded[percent] == b'%');
        let continuation = encoded[at] == b'%' && matches!(encoded[at + 1], b'8' | b'9' | b'A' | b'B' | b'a' | b'b');
        after(1) || after(2) || continuation
    };
    while end > 0 && continues(end) {
        end -= 1;
    }
    Cow::Owned([&encoded[..end], CUT_OFF].concat())
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use hyper::body::Body as _;

    use super::*;

    #[test]
    fn a_deadline_has_up_to_eight_digits_and_a_unit() {
        let of = |text: &'static str| {
            deadline(&HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), HeaderValue::from_static(text))]))
        };
        assert_eq!(of("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(of("99999999m"), Some(Duration::from_millis(99_999_999)));
        assert_eq!(of("0n"), Some(Duration::ZERO));
        for odd in ["", "1", "S", "+1S", "123456789S", "1s", "1 S", "1\u{20}"] {
            assert_eq!(of(odd), None, "{odd}");
        }
    }

    #[tokio::test]
    async fn a_strangers_endless_answer_ends_with_a_status() {
        let endless = Body::from_stream(futures_util::stream::pending::<Result<Bytes, axum::Error>>());
        let limit = Some(((), Box::pin(tokio::time::sleep(Duration::from_millis(1)))));
        let mut answer = Body::new(AnswerBody { body: endless, limit, is_cut_off: false });
        let mut next = async || poll_fn(|context| Pin::new(&mut answer).poll_frame(context)).await;
        let last = next().await.unwrap().unwrap();
        let status = Status::from_header_map(last.trailers_ref().unwrap()).unwrap();
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert!(next().await.is_none());
    }

    #[test]
    fn a_long_text_is_cut_off_between_two_characters() {
        let text = |character: &str, count: usize| {
            let status = Status::not_found(character.repeat(count));
            let mut headers = HeaderMap::new();
            status.add_header(&mut headers).unwrap();
            shorten(&mut headers);
            assert!(headers[Status::GRPC_MESSAGE].len() <= MAX_TEXT);
            Status::from_header_map(&headers).unwrap().message().to_owned()
        };
        assert_eq!(text("x", MAX_TEXT), "x".repeat(MAX_TEXT));
        for character in ["x", "é", "漢", "🦀", "%"] {
            let cut = text(character, 20_000);
            let kept = cut.strip_suffix('…').unwrap();
            assert!(kept.len() > MAX_TEXT / 4 && kept.replace(character, "").is_empty(), "{cut}");
        }
    }
}
