//! The URL of a scheduler: https, or http on loopback.

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
