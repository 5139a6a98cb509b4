//! Reads sitemaps before the start page is fetched, so that the pages that a site lists are fetched
//! before pages found through links.

use std::collections::{HashSet, VecDeque};

use reqwest::Url;

use super::visit_pages::{MAX_REDIRECTS, Walk};
use crate::crawl::fetch::CrawlResponse;
use crate::crawl::fetch::failure_cause::Trouble;
use crate::crawl::html::site_urls::SitePath;
use crate::crawl::html::sitemap_parser::{Sitemap, SitemapReader};
use crate::crawl::outcome::WalkEnd;
use crate::crawl::policy_and_budget::Budget;

/// Maximum number of sitemaps to read per site. This many full sitemaps list two and a half million
/// pages.
const MAX_SITEMAPS: usize = 50;

impl Walk<'_> {
    /// Queues the entries of those sitemaps that robots.txt names and that have the site's origin.
    /// Each sitemap adds one record to the frontier's log.
    pub(super) async fn read_sitemaps(&mut self) -> Result<(), WalkEnd> {
        let named = self.rules.sitemaps();
        let mut waiting: VecDeque<Url> = named.filter_map(|text| self.site.root().join(text).ok()).collect();
        let mut known = HashSet::new();
        while let Some(url) = waiting.pop_front() {
            let Some(path) = self.site.path(&url).filter(|path| self.rules.allow(path)) else { continue };
            if known.contains(&path.fingerprint()) {
                continue;
            }
            if known.len() >= MAX_SITEMAPS || self.frontier.waiting() > u64::from(self.policy.max_pages) {
                self.frontier.totals_mut().dropped = true;
                break;
            }
            known.insert(path.fingerprint());
            if let Some(budget) = self.ledger.exhausted(&self.policy) {
                return Err(WalkEnd::Cut(budget));
            }
            let Some(Sitemap { pages, sitemaps, cut }) = self.read_sitemap(path).await? else { continue };
            if cut {
                self.frontier.totals_mut().dropped = true;
            }
            waiting.extend(sitemaps.iter().filter_map(|text| url.join(text).ok()).take(MAX_SITEMAPS + 1));
            let pages: Vec<SitePath> = pages.iter().filter_map(|text| self.site.path(&url.join(text).ok()?)).collect();
            let totals = self.frontier.totals_mut();
            totals.listed = totals.listed.saturating_add(u64::try_from(pages.len()).unwrap_or(u64::MAX));
            self.fetcher.politeness().learn_size(totals.listed);
            self.step_state().offer_all(pages, 1).await;
            self.end_step();
            self.state_writer.step(self.frontier).await;
        }
        Ok(())
    }

    /// Fetches a sitemap and follows its redirects inside the site; `None` if it is unavailable.
    async fn read_sitemap(&mut self, mut path: SitePath) -> Result<Option<Sitemap>, WalkEnd> {
        for _ in 0..=MAX_REDIRECTS {
            // Depth 1 instead of 0, because a failure at depth 0 would make the site count as
            // unreachable.
            let Some(answer) = self.request(&path, 1).await? else { return Ok(None) };
            let status = answer.status();
            if status.as_u16() == 200 {
                return self.receive_sitemap(answer, &path).await.map(Some);
            }
            let target = answer.location().and_then(|location| self.url(&path)?.join(location).ok());
            self.discard(answer).await?;
            let next = target.and_then(|target| self.site.path(&target)).filter(|next| self.rules.allow(next));
            let Some(next) = next else {
                let reason = format!("answered {}, a sitemap was expected", status.as_u16());
                self.fail(&path, Trouble::of_status(status), &reason);
                return Ok(None);
            };
            path = next;
        }
        self.fail(&path, Trouble::Redirect, "redirects too often");
        Ok(None)
    }

    async fn receive_sitemap(&mut self, mut answer: CrawlResponse, path: &SitePath) -> Result<Sitemap, WalkEnd> {
        let mut reader = SitemapReader::new();
        loop {
            let piece = match answer.piece().await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(reader.finish()),
                Err(error) => {
                    self.fail(path, Trouble::from(&error), &error.to_string());
                    return Ok(Sitemap { cut: true, ..reader.finish() });
                }
            };
            self.ledger.receive_unwanted(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            if self.ledger.overdrawn(&self.policy) {
                return Err(WalkEnd::Cut(Budget::Bytes));
            }
            if !reader.write(&piece) {
                return Ok(Sitemap { cut: true, ..reader.finish() });
            }
        }
    }
}
