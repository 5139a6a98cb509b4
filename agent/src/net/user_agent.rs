//! The value of the User-Agent header that every request sends.
//!
//! A site's owner must be able to contact the crawl's operator. So every request has a
//! [`UserAgent`], which always contains a contact URL. A crawl's policy may put another product
//! name first; the name of this software stays in the header.

use std::str::FromStr;
use std::sync::Arc;

use hyper::header::HeaderValue;

/// Maximum lengths of a product token and of a version, in bytes. The lengths are limited because
/// every request sends the product token and the version.
const MAX_TOKEN_BYTES: usize = 40;
const MAX_VERSION_BYTES: usize = 20;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("contact URL '{0}' is not an http, https or mailto URL")]
pub struct BadContactUrl(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a product name: give NAME or NAME/VERSION, where NAME has up to {MAX_TOKEN_BYTES} letters, '-' or '_', and VERSION up to \
     {MAX_VERSION_BYTES} letters, digits, '.', '-' or '_'"
)]
pub struct BadProduct(String);

/// A crawler's name: a product token, which names the crawler in robots.txt (RFC 9309, 2.2.1), and
/// an optional version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Product {
    token: String,
    /// A slash and the version; empty if there is no version.
    version: String,
}

impl FromStr for Product {
    type Err = BadProduct;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (token, version) = text.find('/').map_or((text, ""), |at| text.split_at(at));
        let letters = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_');
        let named = (1..=MAX_TOKEN_BYTES).contains(&token.len()) && token.bytes().all(letters);
        let numbered = match version.strip_prefix('/') {
            None => true,
            Some(version) => {
                (1..=MAX_VERSION_BYTES).contains(&version.len())
                    && version.bytes().all(|byte| letters(byte) || byte.is_ascii_digit() || byte == b'.')
            }
        };
        let bad = || BadProduct(text.chars().take(80).flat_map(char::escape_debug).collect());
        (named && numbered).then(|| Self { token: token.to_owned(), version: version.to_owned() }).ok_or_else(bad)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserAgent {
    contact: String,
    token: Arc<str>,
    value: HeaderValue,
}

impl UserAgent {
    /// The product token of crawls whose policy sets no other name. Site owners use it in
    /// robots.txt.
    pub const PRODUCT: &'static str = "landfall-agent";

    pub fn new(contact_url: &str) -> Result<Self, BadContactUrl> {
        let bad = || BadContactUrl(contact_url.to_owned());
        let url = url::Url::parse(contact_url.trim()).map_err(|_| bad())?;
        let reachable = match url.scheme() {
            "http" | "https" => url.has_host(),
            "mailto" => url.path().contains('@'),
            _ => false,
        };
        // A bracket in the URL would end the header comment that contains the URL.
        if !reachable || url.as_str().contains(['(', ')']) {
            return Err(bad());
        }
        let value = HeaderValue::from_str(&format!("{} (+{url})", software())).map_err(|_| bad())?;
        Ok(Self { contact: url.into(), token: Self::PRODUCT.into(), value })
    }

    /// The user agent of a crawl whose policy may set a contact URL and a product name. The
    /// policy's user agent replaces the `usual` one, even if that comes from the agent's own
    /// settings.
    pub(super) fn of_crawl(usual: &Self, of_policy: Option<Self>, product: Option<&Product>) -> Self {
        let user_agent = of_policy.unwrap_or_else(|| usual.clone());
        match product {
            Some(product) => user_agent.named(product),
            None => user_agent,
        }
    }

    /// Puts a product name before the software's name: `NAME/VERSION (+CONTACT)
    /// landfall-agent/0.1`.
    #[must_use]
    pub fn named(self, product: &Product) -> Self {
        let text = format!("{}{} (+{}) {}", product.token, product.version, self.contact, software());
        // Never an error: a product is plain ASCII, and the other text is already a header value.
        match HeaderValue::from_str(&text) {
            Ok(value) => Self { token: product.token.as_str().into(), value, ..self },
            Err(_) => self,
        }
    }

    /// The product token by which robots.txt, `X-Robots-Tag` and `meta` elements name the crawler.
    pub const fn token(&self) -> &Arc<str> {
        &self.token
    }

    pub const fn header(&self) -> &HeaderValue {
        &self.value
    }

    pub fn as_str(&self) -> &str {
        self.value.to_str().expect("made from a printable string")
    }
}

fn software() -> String {
    let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    format!("{}/{version}", UserAgent::PRODUCT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_agent_names_its_contact() {
        let agent = UserAgent::new("https://example.org/crawler").unwrap();
        assert_eq!(agent.as_str(), "landfall-agent/0.1 (+https://example.org/crawler)");
        assert_eq!(&**agent.token(), "landfall-agent");
        assert!(UserAgent::new("mailto:crawler@example.org").is_ok());
    }

    #[test]
    fn no_user_agent_without_a_contact() {
        for url in
            ["", " ", "example.org", "ftp://example.org/", "mailto:nobody", "https://a/)x(", "javascript:alert(1)"]
        {
            assert!(UserAgent::new(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_product_name_hides_neither_the_contact_nor_the_software() {
        let ours = UserAgent::new("https://example.org/crawler").unwrap();
        for (name, token, text) in [
            ("StudyBot/1.2-rc1", "StudyBot", "StudyBot/1.2-rc1 (+https://example.org/crawler) landfall-agent/0.1"),
            ("study_bot", "study_bot", "study_bot (+https://example.org/crawler) landfall-agent/0.1"),
        ] {
            let named = ours.clone().named(&name.parse().unwrap());
            assert_eq!((named.as_str(), &**named.token()), (text, token));
        }
        let (long, longer) = ("x".repeat(MAX_TOKEN_BYTES), "x".repeat(MAX_TOKEN_BYTES + 1));
        assert!(long.parse::<Product>().is_ok());
        let bad = ["", "Bot 2", "Bot/1 2", "Bot\r\nX: y", "Bot (+me)", &longer];
        for text in bad.into_iter().chain("/1 Bot/ Bot2 Bot/1/2 例 *".split(' ')) {
            assert!(text.parse::<Product>().is_err(), "{text}");
        }
    }
}
