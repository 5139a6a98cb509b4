//! Decides which redirects are followed: only those inside the site, a limited number of times, and
//! only to allowed paths that have not been fetched yet.

use super::visit_pages::Walk;
use crate::crawl::fetch::failure_cause::Trouble;
use crate::crawl::html::site_path::{Fingerprint, SitePath};
use crate::crawl::outcome::{Blocker, WalkEnd};

pub(in crate::crawl) const MAX_REDIRECTS: usize = 5;

impl Walk<'_> {
    /// The target of a redirect; `None` if the target need not be fetched.
    pub(super) fn follow(
        &mut self,
        from: &SitePath,
        target: &reqwest::Url,
        depth: u32,
        hops: &mut Vec<Fingerprint>,
    ) -> Result<Option<SitePath>, WalkEnd> {
        let Some(next) = self.site.path(target) else {
            if let Some(other) = self.site.other_site(target) {
                self.frontier.discover(other, self.policy.max_hosts);
            }
            // Other sites are crawled separately. But if the start page redirects to another site,
            // this crawl has nothing to fetch.
            let left = format!("{} redirects to {target}, outside the site", self.site.root());
            return if depth == 0 { Err(WalkEnd::Unreachable(Trouble::Redirect, left)) } else { Ok(None) };
        };
        if hops.contains(&next.fingerprint()) {
            self.fail(from, Trouble::Redirect, "redirects in a loop");
            return Ok(None);
        }
        if hops.len() > MAX_REDIRECTS {
            self.fail(from, Trouble::Redirect, "redirects too often");
            return Ok(None);
        }
        if !self.rules.allow(&next) {
            let forbidden = format!("robots.txt forbids {target}, to which the start page redirects");
            return if depth == 0 { Err(WalkEnd::Blocked(Blocker::Robots, forbidden)) } else { Ok(None) };
        }
        // The policy's path filter does not apply to the target of the start page's redirect.
        if depth > 0 && !self.policy.paths.allow(&next) {
            return Ok(None);
        }
        if !self.frontier.mark_known(&next) {
            return Ok(None);
        }
        hops.push(next.fingerprint());
        Ok(Some(next))
    }
}
