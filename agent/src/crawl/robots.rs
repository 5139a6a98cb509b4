//! robots.txt (RFC 9309): fetched before anything else, and honoured.
//!
//! A file that is not there allows everything; one that cannot be had (5xx, 429, no answer) forbids everything, because
//! nobody can say what it would have forbidden. Redirects are followed, to other hosts too, each hop vetted and paced
//! like any request. What it said is used for a day, over all crawls of the agent; a crawl that takes longer asks again.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::time::Duration;

use texting_robots::Robot;
use tokio::time::Instant;

use super::fetch::{Answer, FetchError, Fetcher};
use super::normal_form::normal_escapes;
use super::site_path::{Site, SitePath};
use super::trouble::Trouble;
use crate::user_agent::UserAgent;
use cache::FRESH;
pub use cache::RobotsCache;

mod cache;
pub(super) mod directives;
#[cfg(test)]
mod published;

/// What is read of a robots.txt, in bytes; the rest is as if it were not there (RFC 9309, 2.5).
const MAX_BYTES: usize = 500 * 1024;
/// Redirects followed from robots.txt to robots.txt.
const MAX_REDIRECTS: usize = 5;
/// The most patterns with an end (`$`): each becomes a regular expression of up to 42 KiB.
const MAX_ANCHORED: usize = 500;

/// What robots.txt says.
pub(super) enum Robots {
    /// These rules.
    Rules(Rules),
    /// Nothing may be fetched: why.
    Forbidden(String),
    /// Not even a connection: why.
    NoAnswer(Trouble, String),
    /// The crawl's time is over.
    OutOfTime,
}

/// The rules for this agent.
pub(super) struct Rules {
    robot: Option<Robot>,
    /// From when on they have to be asked for again.
    stale_at: Instant,
}

impl Rules {
    /// The rules of a site without a robots.txt.
    fn none() -> Self {
        Self { robot: None, stale_at: Instant::now() + FRESH }
    }

    /// Whether they are too old to be relied upon.
    pub(super) fn are_stale(&self) -> bool {
        Instant::now() >= self.stale_at
    }

    /// Reads a robots.txt, as a crawler that is known by the product token `token`. Where nothing is said of that name, what is said of
    /// `landfall-agent` counts: who keeps the software out keeps it out by whatever name it comes.
    ///
    /// # Errors
    /// When it cannot be understood; the sentence says why.
    pub(super) fn parse(text: &[u8], token: &str) -> Result<Self, String> {
        let lines = lines(text);
        let named = lines.iter().any(|line| names(line, token));
        let token = if named { token } else { UserAgent::PRODUCT };
        if lines.iter().filter(|line| line.contains(&b'$')).count() > MAX_ANCHORED {
            return Err(format!("it holds more than {MAX_ANCHORED} patterns with '$'"));
        }
        let ours = format!("User-agent: {token}");
        let line = |line| if names(line, token) { Cow::Borrowed(ours.as_bytes()) } else { normal_rule(line) };
        let lines: Vec<Cow<'_, [u8]>> = lines.into_iter().map(line).collect();
        let robot = Robot::new(token, &lines.join(&b'\n')).map_err(|error| error.to_string())?;
        Ok(Self { robot: Some(robot), ..Self::none() })
    }

    pub(super) fn allow(&self, path: &SitePath) -> bool {
        self.robot.as_ref().is_none_or(|robot| robot.allowed(path.as_str()))
    }

    /// The sitemaps it names, as they are written.
    pub(super) fn sitemaps(&self) -> &[String] {
        self.robot.as_ref().map_or(&[], |robot| &robot.sitemaps)
    }

    /// The pause between requests that the site asks for.
    pub(super) fn crawl_delay(&self) -> Option<Duration> {
        let seconds = self.robot.as_ref()?.delay?;
        // Infinity and what no clock can hold is as long as anything can be.
        Some(Duration::try_from_secs_f32(seconds).unwrap_or(Duration::MAX))
    }
}

/// The lines that say something, split wherever the parser would split them.
fn lines(text: &[u8]) -> Vec<&[u8]> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let lines = text.split(|byte| matches!(byte, b'\n' | b'\r' | 0)).map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.is_empty() && !line.starts_with(b"#")).collect()
}

/// A rule with its escapes in normal form, as paths have theirs: the parser compares them byte by byte.
fn normal_rule(line: &[u8]) -> Cow<'_, [u8]> {
    let Ok(text) = str::from_utf8(line) else { return Cow::Borrowed(line) };
    match text.split_once(':') {
        Some((key, _)) if ["allow", "disallow"].iter().any(|rule| key.trim().eq_ignore_ascii_case(rule)) => {
            Cow::Owned(normal_escapes(text).into_bytes())
        }
        _ => Cow::Borrowed(line),
    }
}

/// Whether a line begins a group of rules for a product token. A version or anything else that follows it does not count (RFC 9309,
/// 2.2.1), while the parser compares the whole.
fn names(line: &[u8], token: &str) -> bool {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else { return false };
    let (key, value) = line.split_at(colon);
    let value = value.get(1..).unwrap_or_default().trim_ascii();
    let length = value.iter().take_while(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_')).count();
    key.trim_ascii().eq_ignore_ascii_case(b"user-agent")
        && value.get(..length).is_some_and(|named| named.eq_ignore_ascii_case(token.as_bytes()))
}

/// The rules of a site, as its robots.txt says them now, or said within the last day.
pub(super) async fn rules_of(fetcher: &mut Fetcher, site: &Site, cache: &RobotsCache) -> Robots {
    let (at, text) = match cache.get(site.origin(), Instant::now()) {
        Some(known) => known,
        None => match fetch(fetcher, site).await {
            Ok(text) => {
                let at = Instant::now();
                cache.put(site.origin().clone(), at, text.clone());
                (at, text)
            }
            Err(Denied::Forbidden(reason)) => return Robots::Forbidden(reason),
            Err(Denied::NoAnswer(trouble, reason)) => return Robots::NoAnswer(trouble, reason),
            Err(Denied::OutOfTime) => return Robots::OutOfTime,
        },
    };
    match text.map_or_else(|| Ok(Rules::none()), |text| Rules::parse(&text, fetcher.token())) {
        Ok(rules) => Robots::Rules(Rules { stale_at: at + FRESH, ..rules }),
        Err(reason) => Robots::Forbidden(format!("{}/robots.txt: {reason}", site.origin())),
    }
}

/// Why there are no rules.
enum Denied {
    Forbidden(String),
    NoAnswer(Trouble, String),
    OutOfTime,
}

/// Fetches a site's robots.txt; `None` when there is none.
async fn fetch(fetcher: &mut Fetcher, site: &Site) -> Result<Option<Vec<u8>>, Denied> {
    let Ok(mut url) = site.root().join("/robots.txt") else { return Ok(None) };
    for hop in 0..=MAX_REDIRECTS {
        let answer = match fetcher.get(&url).await {
            Ok(answer) => answer,
            Err(FetchError::OutOfTime) => return Err(Denied::OutOfTime),
            Err(FetchError::Connect(trouble, reason)) if hop == 0 => {
                return Err(Denied::NoAnswer(trouble, format!("{url}: no connection: {reason}")));
            }
            Err(error) => return Err(Denied::Forbidden(format!("{url}: {error}"))),
        };
        let Some(location) = answer.location() else { return read(answer, url.as_str()).await };
        let next = url.join(location).ok().filter(|next| matches!(next.scheme(), "http" | "https"));
        answer.discard(|_| ControlFlow::Continue(())).await;
        match next {
            Some(next) => url = next,
            None => break,
        }
        // Credentials in a redirect would be sent on.
        if url.set_username("").and_then(|()| url.set_password(None)).is_err() {
            break;
        }
    }
    // Redirects without end, or into nowhere: not there (RFC 9309, 2.3.1.2).
    Ok(None)
}

async fn read(answer: Answer, url: &str) -> Result<Option<Vec<u8>>, Denied> {
    let status = answer.status();
    if status.is_server_error() || status.as_u16() == 429 {
        return Err(Denied::Forbidden(format!("{url}: answered {}", status.as_u16())));
    }
    if !status.is_success() {
        answer.discard(|_| ControlFlow::Continue(())).await;
        return Ok(None);
    }
    receive(answer).await.map(Some).map_err(|error| Denied::Forbidden(format!("{url}: {error}")))
}

async fn receive(mut answer: Answer) -> Result<Vec<u8>, FetchError> {
    let mut text = Vec::new();
    while let Some(piece) = answer.piece().await? {
        text.extend_from_slice(&piece);
        if text.len() > MAX_BYTES {
            // Half a line could forbid or allow something else than the whole line.
            let end = text[..MAX_BYTES].iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
            text.truncate(end);
            break;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::site_path::tests::site;
    use super::*;

    fn allows(robots: &str, path: &str) -> bool {
        let site = site("http://example.cn");
        let path = site.path(&site.root().join(path).unwrap()).unwrap();
        Rules::parse(robots.as_bytes(), UserAgent::PRODUCT).unwrap().allow(&path)
    }

    #[test]
    fn our_own_group_counts_before_the_one_for_all() {
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
    fn a_crawl_delay_is_a_duration_whatever_it_says() {
        let delay = |text: &str| {
            let text = format!("User-agent: *\nCrawl-delay: {text}\n");
            Rules::parse(text.as_bytes(), UserAgent::PRODUCT).unwrap().crawl_delay()
        };
        assert_eq!(delay("2.5"), Some(Duration::from_millis(2500)));
        assert_eq!(delay("1e30"), Some(Duration::MAX));
        assert_eq!(delay("inf"), Some(Duration::MAX));
        assert_eq!(delay("-1"), None);
        assert_eq!(delay("nan"), None);
        assert_eq!(delay("soon"), None);
    }

    #[test]
    fn too_many_regular_expressions_are_refused_however_lines_end() {
        for end in ["\n", "\r\n", "\r", "\0"] {
            let rules = |number: usize| format!("User-agent: *{end}") + &format!("Disallow: /*.x${end}").repeat(number);
            assert!(Rules::parse(rules(MAX_ANCHORED + 1).as_bytes(), UserAgent::PRODUCT).is_err(), "{end:?}");
            assert!(!allows(&rules(MAX_ANCHORED), "/y.x"), "{end:?}");
        }
    }

    #[test]
    fn our_token_counts_whatever_follows_it_and_no_other_that_begins_like_it() {
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
    fn a_name_goes_before_the_softwares_and_that_before_all() {
        let by = |robots: &str, token: &str, path: &str| {
            let site = site("http://example.cn");
            let path = site.path(&site.root().join(path).unwrap()).unwrap();
            Rules::parse(robots.as_bytes(), token).unwrap().allow(&path)
        };
        let group = |agent: &str, path: &str| format!("User-agent: {agent}\nDisallow: {path}\n\n");
        let robots =
            [group("*", "/all"), group("landfall-agent/9", "/software"), group("StudyBot/1", "/study")].concat();
        for (token, forbidden) in
            [("studybot", "/study"), ("Study", "/software"), ("landfall-agent", "/software"), ("other", "/software")]
        {
            for path in ["/all", "/software", "/study"] {
                assert_eq!(by(&robots, token, path), path != forbidden, "{token} at {path}");
            }
        }
        assert!(!by(&group("*", "/"), "StudyBot", "/x"));
        assert!(!by(&group("landfall-agent", "/"), "StudyBot", "/x"), "by another name it is kept out as well");
        assert!(by(&group("StudyBot", "/"), "landfall-agent", "/x"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(text in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(rules) = Rules::parse(&text, UserAgent::PRODUCT) {
                rules.allow(&SitePath::root());
                rules.crawl_delay();
            }
        }
    }
}
