//! Receives the body of a page within the limits of a page and of the crawl, or discards it.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::unread_page::UnreadPage;
use super::visit_pages::Walk;
use crate::crawl::budget::Budget;
use crate::crawl::fetch::CrawlResponse;
use crate::crawl::fetch::failure_cause::{FetchError, Trouble};
use crate::crawl::html::links::LinkExtractor;
use crate::crawl::html::site_path::SitePath;
use crate::crawl::outcome::WalkEnd;
use crate::crawl::politeness::robots::page_directives::header_forbids_following;

/// Maximum body bytes of one page. A larger page counts as an error.
pub(in crate::crawl) const MAX_PAGE_BYTES: u64 = 5 << 20;

enum Body {
    Whole,
    TooLarge,
    Broken(FetchError),
}

impl Walk<'_> {
    /// Receives a response that is not a redirect, and queues its links.
    pub(super) async fn take(&mut self, answer: CrawlResponse, path: &SitePath, depth: u32) -> Result<(), WalkEnd> {
        let status = answer.status();
        if status.is_client_error() || status.is_server_error() {
            self.fail(path, Trouble::of_status(status), &format!("answered {}", status.as_u16()));
        }
        if status.as_u16() != 200 {
            return self.discard(answer).await;
        }
        let mut page = None;
        if answer.is_html()
            && !header_forbids_following(answer.robots_tags(), self.fetcher.token())
            && let Some(url) = self.url(path)
        {
            let links = LinkExtractor::new(self.site.clone(), url, answer.charset(), Arc::clone(self.fetcher.token()));
            page = Some(UnreadPage::new(links, depth.saturating_add(1)));
        }
        match self.receive(answer, page.as_mut()).await? {
            Body::Whole => self.ledger.complete_page(),
            Body::Broken(error) => {
                self.fetcher.broke_off(&error);
                self.fail(path, Trouble::from(&error), &error.to_string());
            }
            Body::TooLarge => {
                self.ledger.page_cut = true;
                self.fail(path, Trouble::Other, &format!("is larger than {} MiB", MAX_PAGE_BYTES >> 20));
            }
        }
        self.unread = page;
        Ok(())
    }

    async fn receive(&mut self, mut answer: CrawlResponse, mut page: Option<&mut UnreadPage>) -> Result<Body, WalkEnd> {
        let end = self.ledger.bytes.saturating_add(MAX_PAGE_BYTES);
        loop {
            let piece = match answer.piece().await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(Body::Whole),
                Err(error) => return Ok(Body::Broken(error)),
            };
            self.ledger.receive(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            if self.ledger.overdrawn(&self.policy) {
                return Err(WalkEnd::Cut(Budget::Bytes));
            }
            if let Some(page) = page.as_mut() {
                page.add(&piece);
            }
            if self.ledger.bytes > end {
                return Ok(Body::TooLarge);
            }
        }
    }

    /// Reads an unwanted body if reading it costs less than a new connection.
    pub(super) async fn discard(&mut self, answer: CrawlResponse) -> Result<(), WalkEnd> {
        let (ledger, policy) = (&mut self.ledger, &self.policy);
        let spend = |bytes| {
            ledger.receive_unwanted(bytes);
            if ledger.overdrawn(policy) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        answer.discard(spend).await;
        if self.ledger.overdrawn(&self.policy) { Err(WalkEnd::Cut(Budget::Bytes)) } else { Ok(()) }
    }
}
