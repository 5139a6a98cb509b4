//! Converts between the messages of the protocol and the agent's types. This file contains the
//! conversions that several messages share. This module is pure.

use std::time::Duration;

use landfall_proto::v1::SiteTarget;

use crate::net::origin::Origin;

pub(super) mod leases;
pub(super) mod measurements;

/// Maximum length of a message in a report, in bytes. The length is limited because sites influence
/// messages: for example, a redirect target may be 64 KiB long.
const MAX_SENTENCE: usize = 500;

fn settled_origin(site: &SiteTarget) -> Option<Origin> {
    site.origin.parse().ok()
}

pub(super) fn duration(wire: Option<prost_types::Duration>) -> Option<Duration> {
    wire.and_then(|wire| Duration::try_from(wire).ok())
}

fn to_wire(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

/// Makes a message safe to store and print, because a site may have influenced it.
fn sentence(text: &str) -> String {
    let mut kept = String::new();
    for character in text.chars().filter(|character| !character.is_control()) {
        if kept.len() + character.len_utf8() > MAX_SENTENCE {
            kept.push('…');
            break;
        }
        kept.push(character);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_from_a_site_is_bounded() {
        assert_eq!(sentence("no answer\0\n"), "no answer");
        let long = sentence(&"é".repeat(40_000));
        assert!(long.len() <= MAX_SENTENCE + '…'.len_utf8() && long.ends_with("é…"), "{}", long.len());
    }
}
