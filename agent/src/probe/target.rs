//! The host to measure, and its possible origins.

use std::net::IpAddr;

use crate::net::origin::{BadOrigin, Origin};

#[derive(Debug, Clone)]
pub struct Target {
    /// The possible origins. The first origin that responds is used.
    pub(super) candidates: Vec<Origin>,
    pub(super) path: String,
    /// Whether the target is a site of unknown origin.
    pub(super) is_unsettled: bool,
    /// Whether the target is another agent's beacon.
    pub(super) enrolled: bool,
    /// The address to try first, if it is one of the host's addresses.
    pub(super) first: Option<IpAddr>,
}

impl Target {
    /// A site of unknown origin, with its name as submitted.
    pub fn site(name: &str) -> Result<Self, BadOrigin> {
        Ok(Self { is_unsettled: true, ..Self::at(Origin::candidates(name)?, "/".to_owned()) })
    }

    /// A site whose origin is known.
    pub fn settled(origin: Origin) -> Self {
        Self::at(vec![origin], "/".to_owned())
    }

    /// Another agent's beacon. Only the origin of the URL is used, because private addresses may be
    /// allowed for beacons. If the path were used too, an agent could make another agent send
    /// arbitrary requests to machines in a private network.
    pub fn beacon(url: &str) -> Result<Self, BadOrigin> {
        Ok(Self { enrolled: true, ..Self::settled(url.parse()?) })
    }

    const fn at(candidates: Vec<Origin>, path: String) -> Self {
        Self { candidates, path, is_unsettled: false, enrolled: false, first: None }
    }

    #[must_use]
    pub fn with_first(self, first: Option<IpAddr>) -> Self {
        Self { first, ..self }
    }

    pub const fn is_beacon(&self) -> bool {
        self.enrolled
    }

    /// A target with exactly this URL, including path and query.
    pub fn url(url: &str) -> Result<Self, BadOrigin> {
        let origin: Origin = url.parse()?;
        let path = url::Url::parse(url).map(|url| url[url::Position::BeforePath..url::Position::AfterQuery].to_owned());
        let path = path.ok().filter(|path| path.starts_with('/')).unwrap_or_else(|| "/".to_owned());
        Ok(Self::at(vec![origin], path))
    }
}
