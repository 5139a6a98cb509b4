//! The strategies by which agents are chosen, and their names.

use std::fmt;
use std::str::FromStr;

use super::similar_names;

/// The strategy that chooses an agent for a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Strategy {
    /// Any agent, with equal probability.
    Random,
    /// The agent with the highest hash of its number and the site's name (rendezvous hashing). If
    /// the fleet changes, few sites get a different agent.
    Hash,
    /// The first agent with a free slot among the three whose keys have the smallest XOR distances
    /// to the site's key, as in distributed hash tables.
    Kademlia,
    /// An agent chosen by the public suffix of the site's name. All sites of a suffix go to one
    /// agent, which is in the suffix's country if possible.
    Domain,
    /// The geographically nearest agent.
    Geographic,
    /// The agent whose address has the longest common prefix with the site's address.
    Prefix,
    /// One of the K nearest agents at random (section 2.2.3 of the paper that the README cites).
    GnpTop(TopK),
    /// One of the nearest agents, drawn with weights for free slots and nearness.
    GnpBalanced,
    /// The nearest agent by measurement, after the few agents that may be nearest have measured the
    /// site.
    GnpConfirmed,
    /// The agent that is predicted to end the crawl first, including the wait for a slot.
    EarliestFinish,
}

/// The number of nearest agents among which `gnp-topK` draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TopK(u8);

impl TopK {
    /// Maximum K. A draw among more agents would include distant agents.
    pub const MOST: u8 = 99;

    /// Returns `None` if `k` is 0 or greater than [`Self::MOST`].
    pub const fn new(k: u8) -> Option<Self> {
        if 1 <= k && k <= Self::MOST { Some(Self(k)) } else { None }
    }

    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownStrategy {
    #[error("unknown strategy '{name}': the strategies are {known}{question}")]
    Name {
        name: String,
        known: String,
        /// A question that suggests similar names of strategies; empty if no name is similar.
        question: String,
    },
    #[error("'{name}' is not gnp-topK: K must be a whole number from 1 to {}", TopK::MOST)]
    TopK { name: String },
}

/// The name of [`Strategy::GnpTop`] without the number K at its end.
const GNP_TOP: &str = "gnp-top";

impl Strategy {
    pub const GNP_TOP1: Self = Self::GnpTop(TopK(1));
    pub const GNP_TOP3: Self = Self::GnpTop(TopK(3));

    /// The strategies shown in lists. Of `gnp-topK`, only `gnp-top1` and `gnp-top3` are listed.
    pub const ALL: &'static [Self] = &[
        Self::Random,
        Self::Hash,
        Self::Kademlia,
        Self::Domain,
        Self::Geographic,
        Self::Prefix,
        Self::GNP_TOP1,
        Self::GNP_TOP3,
        Self::GnpBalanced,
        Self::GnpConfirmed,
        Self::EarliestFinish,
    ];

    /// Every strategy, including `gnp-topK` for every K.
    pub fn each() -> impl Iterator<Item = Self> {
        let named = Self::ALL.iter().copied().filter(|one| !matches!(one, Self::GnpTop(_)));
        named.chain((1..=TopK::MOST).filter_map(TopK::new).map(Self::GnpTop))
    }

    /// The whole name; `None` for [`Self::GnpTop`], whose name depends on K.
    const fn word(self) -> Option<&'static str> {
        match self {
            Self::Random => Some("random"),
            Self::Hash => Some("hash"),
            Self::Kademlia => Some("kademlia"),
            Self::Domain => Some("domain"),
            Self::Geographic => Some("geographic"),
            Self::Prefix => Some("prefix"),
            Self::GnpTop(_) => None,
            Self::GnpBalanced => Some("gnp-balanced"),
            Self::GnpConfirmed => Some("gnp-confirmed"),
            Self::EarliestFinish => Some("earliest-finish"),
        }
    }

    /// Whether the strategy uses round trips between agents and sites.
    pub const fn needs_distance(self) -> bool {
        match self {
            Self::Random | Self::Hash | Self::Kademlia | Self::Domain | Self::Geographic | Self::Prefix => false,
            Self::GnpTop(_) | Self::GnpBalanced | Self::GnpConfirmed | Self::EarliestFinish => true,
        }
    }

    /// Whether the strategy gives some sites to an agent that may be nearer than the best known
    /// agent. The strategies in the paper that the README cites do not explore.
    pub const fn explores(self) -> bool {
        matches!(self, Self::GnpBalanced | Self::EarliestFinish)
    }

    /// Whether the strategy, leaving load aside, chooses the agent that it considers nearest. Other
    /// strategies draw at random or ignore distance.
    pub const fn prefers_the_nearest(self) -> bool {
        matches!(self, Self::GNP_TOP1 | Self::GnpBalanced | Self::GnpConfirmed | Self::EarliestFinish)
    }

    /// Whether the strategy also ranks agents by their loads.
    pub const fn needs_load(self) -> bool {
        matches!(self, Self::GnpBalanced | Self::EarliestFinish)
    }

    /// Whether the strategy confirms only sites with uncertain distances, while their tasks wait
    /// for a slot. Other strategies confirm every site or none.
    pub const fn confirms_the_unsure(self) -> bool {
        matches!(self, Self::GnpBalanced | Self::EarliestFinish)
    }

    /// Whether sites must be measured before an agent is chosen, because the strategy needs their
    /// distances, or their addresses as resolved by probers.
    pub const fn needs_measuring(self) -> bool {
        self.needs_distance() || matches!(self, Self::Geographic | Self::Prefix)
    }
}

impl Default for Strategy {
    fn default() -> Self {
        Self::GNP_TOP3
    }
}

/// Writes the name that the store, the command line and reports use. The name never changes.
impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GnpTop(k) => f.pad(&format!("{GNP_TOP}{}", k.0)),
            other => f.pad(other.word().unwrap_or_default()),
        }
    }
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if let Some(k) = name.strip_prefix(GNP_TOP) {
            // `gnp-top03` and `gnp-top+3` are refused, so that each strategy has only one name.
            let plain = !k.starts_with('0') && k.bytes().all(|byte| byte.is_ascii_digit());
            let top = k.parse().ok().filter(|_| plain).and_then(TopK::new).map(Self::GnpTop);
            return top.ok_or_else(|| UnknownStrategy::TopK { name: name.to_owned() });
        }
        Self::ALL.iter().copied().find(|strategy| strategy.word() == Some(name)).ok_or_else(|| {
            let known: Vec<String> = Self::ALL.iter().map(Self::to_string).collect();
            let (listed, near) = (known.join(", "), similar_names::nearest(name, known));
            UnknownStrategy::Name { name: name.to_owned(), known: listed, question: similar_names::question(near) }
        })
    }
}

impl From<Strategy> for String {
    fn from(strategy: Strategy) -> Self {
        strategy.to_string()
    }
}

impl TryFrom<String> for Strategy {
    type Error = UnknownStrategy;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_are_known_by_their_names() {
        for strategy in Strategy::each() {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        assert!(Strategy::ALL.iter().all(|strategy| Strategy::each().any(|one| one == *strategy)));
        assert_eq!(Strategy::each().count(), 9 + 99);
        let error = "top3".parse::<Strategy>().unwrap_err().to_string();
        assert!(
            error.starts_with("unknown strategy 'top3': the strategies are random, ") && error.contains("gnp-top3")
        );
        for name in
            ["gnp-top", "gnp-top0", "gnp-top03", "gnp-top+3", "gnp-top100", "gnp-top-1", "gnp-topK", "gnp-top3 "]
        {
            let error = name.parse::<Strategy>().unwrap_err().to_string();
            assert_eq!(error, format!("'{name}' is not gnp-topK: K must be a whole number from 1 to 99"));
        }
    }
}
