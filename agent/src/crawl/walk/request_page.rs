//! Requests a page, again while the site answers with 429 or 503, and decides which failures end
//! the crawl.

use super::visit_pages::Walk;
use crate::crawl::fetch::CrawlResponse;
use crate::crawl::fetch::failure_cause::{FetchError, Trouble};
use crate::crawl::html::site_path::SitePath;
use crate::crawl::outcome::{Blocker, WalkEnd};
use crate::crawl::politeness::refusal_pause::ATTEMPTS;

impl Walk<'_> {
    /// Sends a request. While the site responds with 429 or 503, repeats the request up to
    /// [`ATTEMPTS`] times in total, so that pages of a busy site are not missed. `None`
    /// if the request failed.
    pub(super) async fn request(&mut self, path: &SitePath, depth: u32) -> Result<Option<CrawlResponse>, WalkEnd> {
        let Some(url) = self.url(path) else {
            self.catch_up().await;
            self.fail(path, Trouble::Other, "is not a URL");
            return Ok(None);
        };
        let mut turned_away = None;
        for attempt in 1.. {
            match self.get(&url).await.map(|answer| answer.found_at(depth)) {
                Ok(answer) if answer.turns_away() && attempt < ATTEMPTS && !self.fetcher.is_circuit_open() => {
                    turned_away = Some(answer.status());
                    self.discard(answer).await?;
                    // Store the state now, because the pause may be long, and a restart must not
                    // shorten it.
                    self.note_totals();
                    self.frontier.note_totals().await?;
                    self.check_pause()?;
                    self.report_snapshot().await?;
                }
                Ok(answer) => return Ok(Some(answer)),
                Err(FetchError::OutOfTime) => {
                    if let Some(status) = turned_away {
                        let reason = format!("answered {}, and no time is left for another request", status.as_u16());
                        self.fail(path, Trouble::of_status(status), &reason);
                    }
                    return Err(self.out_of_time());
                }
                Err(error @ FetchError::CircuitOpen) => {
                    return Err(WalkEnd::Blocked(Blocker::Breaker, format!("{}: {error}", self.site.root())));
                }
                Err(FetchError::NotPermitted(reason)) => return Err(WalkEnd::NotPermitted(reason)),
                Err(FetchError::Refused(refused)) if depth == 0 => {
                    return Err(WalkEnd::Blocked(Blocker::Guard, refused.to_string()));
                }
                Err(error) => {
                    self.fail(path, Trouble::from(&error), &error.to_string());
                    break;
                }
            }
        }
        Ok(None)
    }
}
