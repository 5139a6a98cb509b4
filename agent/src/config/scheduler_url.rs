//! Parses the setting `scheduler`: the URLs of schedulers, each https, or http on loopback.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Debug, Clone)]
pub struct SchedulerUrl {
    pub url: url::Url,
    pub tls: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSchedulerUrl {
    #[error("'{0}' is neither an https URL nor an http URL on loopback")]
    NotUrl(String),
    /// The credential would cross the network unencrypted.
    #[error("plaintext is refused except on loopback: {0} is not a loopback address, use https")]
    Plaintext(String),
}

impl SchedulerUrl {
    /// Parses the URLs of one fleet's schedulers. Refuses an empty list.
    pub fn parse_all(texts: &[String]) -> Result<Vec<Self>, BadSchedulerUrl> {
        let urls = texts.iter().map(|text| Self::parse(text)).collect::<Result<Vec<_>, _>>()?;
        if urls.is_empty() { Err(BadSchedulerUrl::NotUrl(String::new())) } else { Ok(urls) }
    }

    /// Parses a scheduler's URL. An http URL is accepted only on loopback.
    pub fn parse(text: &str) -> Result<Self, BadSchedulerUrl> {
        let not_url = || BadSchedulerUrl::NotUrl(text.to_owned());
        let url = url::Url::parse(text).map_err(|_| not_url())?;
        let loopback = match url.host().ok_or_else(not_url)? {
            url::Host::Domain(name) => name == "localhost",
            url::Host::Ipv4(addr) => addr.is_loopback(),
            url::Host::Ipv6(addr) => addr.is_loopback(),
        };
        match url.scheme() {
            "https" => Ok(Self { url, tls: true }),
            "http" if loopback => Ok(Self { url, tls: false }),
            "http" => Err(BadSchedulerUrl::Plaintext(url.host_str().unwrap_or_default().to_owned())),
            _ => Err(not_url()),
        }
    }
}

/// The setting's value: one URL, or a list of URLs.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// Writes a single URL as a string, and several as a list.
pub(super) fn serialize<S: Serializer>(addresses: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    match addresses {
        [one] => one.serialize(serializer),
        more => more.serialize(serializer),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let read = OneOrMore::deserialize(deserializer);
    match read.map_err(|_| serde::de::Error::custom("scheduler must be a URL, or a list of URLs"))? {
        OneOrMore::One(one) => Ok(vec![one]),
        OneOrMore::More(more) => Ok(more),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_of_schedulers_is_refused() {
        assert!(SchedulerUrl::parse_all(&[]).is_err());
    }
}
