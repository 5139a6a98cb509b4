//! The contact URL, at which a site's owner can reach the operator. Every request contains it in
//! the User-Agent header.

use std::fmt;
use std::str::FromStr;

use url::Url;

/// Maximum length of a contact URL in bytes, because every request contains the URL.
const MAX_LENGTH: usize = 200;

/// An http or https URL with a host, or a mailto address; ASCII only, because the URL is part of an
/// HTTP header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContactUrl(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a contact URL: give an http or https URL, or mailto:name@host, of at most {MAX_LENGTH} bytes")]
pub struct InvalidContact(String);

impl ContactUrl {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContactUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ContactUrl {
    type Err = InvalidContact;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidContact(text.chars().take(MAX_LENGTH).flat_map(char::escape_debug).collect());
        let url = Url::parse(text.trim()).map_err(|_| invalid())?;
        let reaches = match url.scheme() {
            "http" | "https" => url.has_host() && url.username().is_empty() && url.password().is_none(),
            "mailto" => url.path().split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty()),
            _ => false,
        };
        // A parenthesis would end the comment in the User-Agent header.
        let fits = url.as_str().len() <= MAX_LENGTH
            && url.as_str().bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'(' | b')'));
        if reaches && fits { Ok(Self(url.into())) } else { Err(invalid()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_url_reaches_somebody_and_fits_a_header() {
        for text in ["https://example.org/bot", "mailto:bot@example.org", "http://例子.cn/é"] {
            let contact: ContactUrl = text.parse().expect("a contact URL");
            assert!(contact.as_str().is_ascii(), "{contact}");
        }
        let long = format!("https://example.org/{}", "x".repeat(200));
        for text in [
            "",
            "example.org",
            "ftp://example.org",
            "mailto:",
            "mailto:@",
            "http://",
            "https://a.cn/(x)",
            long.as_str(),
        ] {
            assert!(text.parse::<ContactUrl>().is_err(), "{text}");
        }
    }
}
