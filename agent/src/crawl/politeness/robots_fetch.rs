//! Requests a site's robots.txt, and decides from the response whether the file counts as missing
//! or as unavailable.
//!
//! A missing file allows everything. An unavailable file (5xx, 429, no response) forbids
//! everything, because its rules are unknown. Redirects are followed, even to other hosts. As for
//! all requests, the guard vets the addresses, and `crawl::politeness` decides when the requests
//! start.

use std::ops::ControlFlow;

use crate::crawl::fetch::failure_cause::{FetchError, Trouble};
use crate::crawl::fetch::{CrawlResponse, Fetcher};
use crate::crawl::html::site_urls::Site;

/// Maximum bytes of a robots.txt to read. Everything after that is ignored (RFC 9309, 2.5).
pub(super) const MAX_BYTES: usize = 500 * 1024;
const MAX_REDIRECTS: usize = 5;

/// Why there are no rules.
pub(in crate::crawl) enum RulesError {
    /// robots.txt forbids every request, or could not be read; the text is the reason.
    Forbidden(String),
    /// The site did not respond; the text is the reason.
    NoAnswer(Trouble, String),
    /// The crawl's deadline has passed.
    OutOfTime,
}

/// Fetches a site's robots.txt; `None` if it is missing.
pub(super) async fn fetch(fetcher: &mut Fetcher, site: &Site) -> Result<Option<Vec<u8>>, RulesError> {
    let Ok(mut url) = site.root().join("/robots.txt") else { return Ok(None) };
    for hop in 0..=MAX_REDIRECTS {
        let answer = match fetcher.get(&url).await {
            Ok(answer) => answer,
            Err(FetchError::OutOfTime) => return Err(RulesError::OutOfTime),
            Err(FetchError::Connect(trouble, reason)) if hop == 0 => {
                return Err(RulesError::NoAnswer(trouble, format!("{url}: no connection: {reason}")));
            }
            Err(error) => return Err(RulesError::Forbidden(format!("{url}: {error}"))),
        };
        let Some(location) = answer.location() else { return read(answer, url.as_str()).await };
        let next = url.join(location).ok().filter(|next| matches!(next.scheme(), "http" | "https"));
        answer.discard(|_| ControlFlow::Continue(())).await;
        match next {
            Some(next) => url = next,
            None => break,
        }
        // Remove credentials from the URL, or the client would send them to the redirect's target.
        if url.set_username("").and_then(|()| url.set_password(None)).is_err() {
            break;
        }
    }
    // If redirects are endless or invalid, the file counts as missing (RFC 9309, 2.3.1.2).
    Ok(None)
}

async fn read(answer: CrawlResponse, url: &str) -> Result<Option<Vec<u8>>, RulesError> {
    let status = answer.status();
    if status.is_server_error() || status.as_u16() == 429 {
        return Err(RulesError::Forbidden(format!("{url}: answered {}", status.as_u16())));
    }
    if !status.is_success() {
        answer.discard(|_| ControlFlow::Continue(())).await;
        return Ok(None);
    }
    receive(answer).await.map(Some).map_err(|error| RulesError::Forbidden(format!("{url}: {error}")))
}

async fn receive(mut answer: CrawlResponse) -> Result<Vec<u8>, FetchError> {
    let mut text = Vec::new();
    while let Some(piece) = answer.piece().await? {
        text.extend_from_slice(&piece);
        if text.len() > MAX_BYTES {
            // Drop the last line, which was cut: its meaning could differ from that of the whole
            // line.
            let end = text[..MAX_BYTES].iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
            text.truncate(end);
            break;
        }
    }
    Ok(text)
}
