//! Which agents may crawl for a batch, as `batches show` says it.

use super::output;
use crate::constraints::{Constraints, Unmet};

/// Constraints in a line for people; empty when there are none.
pub(super) fn line(asked: &Constraints) -> String {
    let mut parts = Vec::new();
    let lists =
        [("in ", &asked.countries, " or "), ("of ", &asked.carriers, " or "), ("tagged ", &asked.tags, " and ")];
    for (what, values, between) in lists {
        if !values.is_empty() {
            parts.push(format!("{what}{}", values.join(between)));
        }
    }
    if let Some(bytes) = asked.bytes_per_day {
        parts.push(format!("at most {} a day each", output::bytes_cell(bytes)));
    }
    if asked.unmet == Unmet::Fail {
        parts.push("else they fail".to_owned());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_are_said_in_a_line() {
        let asked = Constraints {
            countries: vec!["CN".into(), "JP".into()],
            carriers: vec!["CERNET".into()],
            tags: vec!["fast".into()],
            bytes_per_day: Some(7),
            unmet: Unmet::Fail,
        };
        assert_eq!(line(&asked), "in CN or JP, of CERNET, tagged fast, at most 7 B a day each, else they fail");
        assert_eq!(line(&Constraints::default()), "");
    }
}
