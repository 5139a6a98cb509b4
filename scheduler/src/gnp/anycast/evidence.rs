//! Holds the evidence that a host has several locations, and puts it into words.

use std::net::IpAddr;

use crate::model::{AgentId, Rtt};

#[derive(Debug, Clone, PartialEq)]
pub enum AnycastEvidence {
    /// Two landmarks' round trips to the host add up to less than light in fibre needs for a round
    /// trip between the two landmarks.
    Light {
        pair: (AgentId, AgentId),
        /// The sum of the two round trips.
        sum: Rtt,
        /// The great-circle distance between the landmarks, in kilometres.
        way_km: f64,
        /// The shortest possible round trip between the landmarks at the speed of light in fibre,
        /// in milliseconds.
        least_ms: f64,
    },
    /// The map: several locations explain the round trips better than any single one.
    Map {
        /// The host's score minus the limit above which a host is suspect.
        beyond: f64,
        /// The pair of landmarks for which the sum of their round trips to the host is smallest in
        /// relation to the distance between them. The tuple also contains this sum and distance.
        /// `None` if the round trips of no pair add up to less than the pair's distance.
        pair: Option<((AgentId, AgentId), Rtt, Rtt)>,
        /// Number of disjoint pairs of landmarks whose round trips to the host add up to less than
        /// 0.8 of the pair's distance.
        short_pairs: usize,
    },
    /// Landmarks resolved addresses in different prefixes.
    Prefixes {
        prefixes: usize,
        /// Number of landmarks that resolved an address.
        landmarks: usize,
        /// One address from each of the first two prefixes.
        examples: (IpAddr, IpAddr),
    },
    /// Landmarks resolved different addresses in one prefix.
    Addresses {
        addresses: usize,
        /// Number of landmarks that resolved an address.
        landmarks: usize,
    },
}

impl AnycastEvidence {
    /// Describes the evidence for human readers; `name` returns an agent's name.
    pub fn words(&self, name: impl Fn(AgentId) -> String) -> String {
        match *self {
            Self::Light { pair: (a, b), sum, way_km, least_ms } => format!(
                "{} and {} measure {sum} to it in sum, but light in fibre needs {least_ms:.1} ms for the {way_km:.0} \
                 km between them",
                name(a),
                name(b)
            ),
            Self::Map { pair, short_pairs, .. } => {
                let mut words = "several places explain the round trips better than one".to_owned();
                if let Some(((a, b), sum, apart)) = pair {
                    let (a, b) = (name(a), name(b));
                    words = format!("{words}; {a} and {b} measure {sum} to it in sum, but {apart} to each other");
                }
                if short_pairs > 1 {
                    words = format!(
                        "{words}, and {short_pairs} separate pairs measure less than 0.8 of their distance in sum"
                    );
                }
                words
            }
            Self::Prefixes { prefixes, landmarks, examples: (a, b) } => {
                format!("{landmarks} landmarks were sent to {prefixes} different networks, {a} and {b} among them")
            }
            Self::Addresses { addresses, landmarks } => {
                format!("{landmarks} landmarks were sent to {addresses} addresses of one network")
            }
        }
    }
}
