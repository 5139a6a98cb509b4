//! The rules of a site's robots.txt that apply to a crawl.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::cache::{FRESH, RobotsCache};
use super::fetch::{RulesError, fetch};
use super::parser::{LineRange, RobotsFile};
use crate::crawl::fetch::Fetcher;
use crate::crawl::html::site::Site;
use crate::crawl::html::site_path::SitePath;

/// The rules that apply to a crawl with a certain product token.
pub(in crate::crawl) struct RobotsRules {
    file: Arc<RobotsFile>,
    groups: Vec<LineRange>,
    /// The time at which the rules expire and must be fetched again.
    stale_at: Instant,
    /// The memory permit, which only a large file needs.
    _room: Option<OwnedSemaphorePermit>,
}

impl RobotsRules {
    /// Rules that allow everything.
    pub(in crate::crawl) fn none() -> Self {
        Self::of(Arc::default(), "", Instant::now(), None)
    }

    /// The rules for a crawler with product token `token`. The rules come from a file that was
    /// requested at `at`.
    fn of(file: Arc<RobotsFile>, token: &str, at: Instant, room: Option<OwnedSemaphorePermit>) -> Self {
        let groups = file.groups_for(token);
        Self { file, groups, stale_at: at + FRESH, _room: room }
    }

    #[cfg(test)]
    pub(in crate::crawl) fn parse(text: &[u8], token: &str) -> Self {
        Self::of(Arc::new(RobotsFile::parse(text)), token, Instant::now(), None)
    }

    pub(in crate::crawl) fn are_stale(&self) -> bool {
        Instant::now() >= self.stale_at
    }

    pub(in crate::crawl) fn allow(&self, path: &SitePath) -> bool {
        self.file.allow(&self.groups, path)
    }

    pub(in crate::crawl) fn sitemaps(&self) -> impl Iterator<Item = &str> {
        self.file.sitemaps()
    }

    pub(in crate::crawl) fn crawl_delay(&self) -> Option<Duration> {
        let seconds = self.file.delay(&self.groups)?;
        // An infinite value, or a value beyond the clock's range, becomes the maximum.
        Some(Duration::try_from_secs_f32(seconds).unwrap_or(Duration::MAX))
    }
}

/// The rules of a site. Fetches the site's robots.txt, unless the cache has one that is less than a
/// day old.
pub(in crate::crawl) async fn rules_of(
    fetcher: &mut Fetcher,
    site: &Site,
    cache: &RobotsCache,
) -> Result<RobotsRules, RulesError> {
    let (at, file) = match cache.get(site.origin(), Instant::now()) {
        Some(known) => known,
        None => {
            let text = fetch(fetcher, site).await?;
            let (at, file) = (Instant::now(), text.map(|text| Arc::new(RobotsFile::parse(&text))));
            cache.put(site.origin().clone(), at, file.clone());
            (at, file)
        }
    };
    let file = file.unwrap_or_default();
    let room = cache.room_for(&file).await;
    Ok(RobotsRules::of(file, fetcher.token(), at, room))
}

#[cfg(test)]
mod tests {
    use super::super::fetch::MAX_BYTES;
    use super::*;
    use crate::crawl::html::site::tests::path_of;
    use crate::net::user_agent::UserAgent;

    fn allows(robots: &str, path: &str) -> bool {
        allows_by(robots, UserAgent::PRODUCT, path)
    }

    fn allows_by(robots: &str, token: &str, path: &str) -> bool {
        RobotsRules::parse(robots.as_bytes(), token).allow(&path_of(path))
    }

    #[test]
    fn our_own_group_precedes_the_wildcard_group() {
        let robots =
            "User-agent: *\nDisallow: /\n\nUser-agent: Landfall-Agent\nDisallow: /private\nAllow: /private/open\n";
        assert!(allows(robots, "/"));
        assert!(!allows(robots, "/private/x"));
        assert!(allows(robots, "/private/open"));
        assert!(!allows("User-agent: *\nDisallow: /\n", "/x"));
        assert!(!allows("User-agent: *\nDisallow: /*?print=1$\n", "/x?print=1"));
        assert!(allows("User-agent: other\nDisallow: /\n", "/x"));
    }

    #[test]
    fn any_crawl_delay_is_a_duration_or_none() {
        let delay = |text: &str| {
            let text = format!("User-agent: *\nCrawl-delay: {text}\n");
            RobotsRules::parse(text.as_bytes(), UserAgent::PRODUCT).crawl_delay()
        };
        assert_eq!(delay("2.5"), Some(Duration::from_millis(2500)));
        assert_eq!(delay("1e30"), Some(Duration::MAX));
        assert_eq!(delay("inf"), Some(Duration::MAX));
        assert_eq!(delay("-1"), None);
        assert_eq!(delay("nan"), None);
        assert_eq!(delay("soon"), None);
    }

    #[test]
    fn patterns_with_an_end_take_no_more_memory_than_the_text() {
        for end in ["\n", "\r\n", "\r", "\0"] {
            let text = format!("User-agent: *{end}") + &format!("Disallow: /*.x${end}").repeat(25_000);
            let file = RobotsFile::parse(text.as_bytes());
            assert!(file.bytes() <= text.len(), "{} of {}", file.bytes(), text.len());
            assert!(!allows(&text, "/y.x") && allows(&text, "/y.x/"), "{end:?}");
        }
    }

    #[test]
    fn the_largest_file_takes_at_most_three_times_its_length() {
        let rule = "Disallow: /*\u{e9}*\u{e9}$\n";
        let text = format!("User-agent: *\n{}", rule.repeat(MAX_BYTES / rule.len()));
        assert!(RobotsFile::parse(text.as_bytes()).bytes() <= 3 * text.len());
        assert!(allows(&text, &format!("/{}", "x".repeat(2000))));
    }

    #[test]
    fn an_empty_rule_has_no_effect_and_a_group_may_have_no_rules() {
        assert!(!allows("User-agent: *\nDisallow:\nDisallow: /\n", "/x"));
        assert!(allows("User-agent: *\nDisallow: /\n\nUser-agent: landfall-agent\nDisallow:\n", "/x"));
        assert!(!allows("Disallow: /x\n", "/x"), "without groups all rules are for anybody");
        assert!(allows("Disallow: /x\nUser-agent: *\nDisallow: /y\n", "/x"));
        assert!(!allows("User-agent: landfall-agent\nSitemap: http://a.cn/\nUser-agent: b\nDisallow: /x\n", "/x"));
        assert!(allows("User-agent: landfall-agent\nCrawl-delay: 1\nUser-agent: b\nDisallow: /x\n", "/x"));
    }

    #[test]
    fn our_token_matches_with_any_suffix_and_no_longer_token_does() {
        let group = |agent: &str| format!("User-agent: *\nDisallow:\n\nUser-Agent : {agent}\nDisallow: /x\n");
        for agent in
            ["landfall-agent", "Landfall-Agent/0.1", "landfall-agent/0.1 (+https://a.cn/)", "landfall-agent # x"]
        {
            assert!(!allows(&group(agent), "/x"), "{agent}");
        }
        for agent in ["landfall", "landfall-agents", "landfall-agent-news/1", "other landfall-agent"] {
            assert!(allows(&group(agent), "/x"), "{agent}");
        }
        assert!(!allows("\u{feff}User-agent: landfall-agent/2\nDisallow: /x\n", "/x"));
    }

    #[test]
    fn the_crawls_product_name_precedes_the_softwares_and_then_the_wildcard() {
        let group = |agent: &str, path: &str| format!("User-agent: {agent}\nDisallow: {path}\n\n");
        let robots =
            [group("*", "/all"), group("landfall-agent/9", "/software"), group("StudyBot/1", "/study")].concat();
        for (token, forbidden) in
            [("studybot", "/study"), ("Study", "/software"), ("landfall-agent", "/software"), ("other", "/software")]
        {
            for path in ["/all", "/software", "/study"] {
                assert_eq!(allows_by(&robots, token, path), path != forbidden, "{token} at {path}");
            }
        }
        assert!(!allows_by(&group("*", "/"), "StudyBot", "/x"));
        assert!(!allows_by(&group("landfall-agent", "/"), "StudyBot", "/x"), "by another name it is kept out as well");
        assert!(allows_by(&group("StudyBot", "/"), "landfall-agent", "/x"));
    }
}
