//! The user agent every request carries.
//!
//! A site's owner must be able to reach whoever sends the requests, so there is no user agent without a contact URL,
//! and no request can be formed without a [`UserAgent`].

use hyper::header::HeaderValue;

/// A contact URL that a site's owner could not use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("contact URL '{0}' is not an http, https or mailto URL")]
pub struct BadContactUrl(String);

/// A user agent with a contact URL in it. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserAgent {
    value: HeaderValue,
}

impl UserAgent {
    /// What robots.txt knows the agent by.
    pub const PRODUCT: &'static str = "landfall-agent";

    /// The user agent that names `contact_url`.
    ///
    /// # Errors
    /// When it is not an http, https or mailto URL.
    pub fn new(contact_url: &str) -> Result<Self, BadContactUrl> {
        let bad = || BadContactUrl(contact_url.to_owned());
        let url = url::Url::parse(contact_url.trim()).map_err(|_| bad())?;
        let reachable = match url.scheme() {
            "http" | "https" => url.has_host(),
            "mailto" => url.path().contains('@'),
            _ => false,
        };
        // A bracket would end the comment that holds the URL.
        if !reachable || url.as_str().contains(['(', ')']) {
            return Err(bad());
        }
        let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
        let text = format!("{}/{version} (+{url})", Self::PRODUCT);
        Ok(Self { value: HeaderValue::from_str(&text).map_err(|_| bad())? })
    }

    /// The header's value.
    pub const fn header(&self) -> &HeaderValue {
        &self.value
    }

    /// The header's value as text.
    pub fn as_str(&self) -> &str {
        self.value.to_str().expect("made from a printable string")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_agent_names_its_contact() {
        let agent = UserAgent::new("https://example.org/crawler").unwrap();
        assert_eq!(agent.as_str(), "landfall-agent/0.1 (+https://example.org/crawler)");
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
}
