//! Which agents may crawl for a batch, as flags and as a table of the policy's file; and how `batches show` says it.

use anyhow::anyhow;
use clap::Args;
use landfall_proto::v1;
use serde::Serialize;
use toml::Value;

use super::output;
use crate::constraints::{ConstraintsRequest, Unmet};
use crate::exit::usage;

/// The fields the table may have.
const FIELDS: &str = "country, carrier, tag, bytes_per_day and unmet";

/// Which agents may crawl for the batch. What is not said is nothing, or what the batch has.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Which agents may crawl it")]
pub(super) struct ConstraintsArgs {
    /// Only agents in this country, two letters (ISO 3166-1); said again, any of them
    #[arg(long, value_name = "CC")]
    country: Vec<String>,
    /// Only agents of this carrier (ISP); said again, any of them
    #[arg(long, value_name = "ISP")]
    carrier: Vec<String>,
    /// Only agents with this tag; said again, all of them
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Bytes that one agent may fetch for the batch within 24 hours
    #[arg(long, value_name = "N")]
    bytes_per_day: Option<u64>,
    /// What becomes of sites that no agent may crawl: they wait, or they fail
    #[arg(long, value_name = "wait|fail")]
    unmet: Option<Unmet>,
}

impl ConstraintsArgs {
    /// What is asked of the agents: what flags say, else what the file says; `None` when nothing is.
    pub(super) fn constraints(&self, file: ConstraintsRequest) -> anyhow::Result<Option<v1::Constraints>> {
        let flags = ConstraintsRequest {
            countries: self.country.clone(),
            carriers: self.carrier.clone(),
            tags: self.tag.clone(),
            bytes_per_day: self.bytes_per_day,
            unmet: self.unmet,
        };
        let flags = flags
            .checked()
            .map_err(|error| usage(format!("--{}: {}", error.field.replace('_', "-"), error.problem)))?;
        let or = |flags: Vec<String>, file: Vec<String>| if flags.is_empty() { file } else { flags };
        let asked = v1::Constraints {
            countries: or(flags.countries, file.countries),
            carriers: or(flags.carriers, file.carriers),
            tags: or(flags.tags, file.tags),
            bytes_per_day: flags.bytes_per_day.or(file.bytes_per_day),
            unmet: flags.unmet.or(file.unmet).map_or(v1::Unmet::Unspecified, message).into(),
        };
        Ok(Some(asked).filter(|asked| *asked != v1::Constraints::default()))
    }
}

const fn message(unmet: Unmet) -> v1::Unmet {
    match unmet {
        Unmet::Wait => v1::Unmet::Wait,
        Unmet::Fail => v1::Unmet::Fail,
    }
}

/// Reads the table of a policy's file.
pub(super) fn table(value: &Value) -> anyhow::Result<ConstraintsRequest> {
    let table = value.as_table().ok_or_else(|| anyhow!("{value} is not a table"))?;
    let mut asked = ConstraintsRequest::default();
    for (name, value) in table {
        let within = |error: anyhow::Error| anyhow!("{name}: {error}");
        match name.as_str() {
            "country" => asked.countries = texts(value).map_err(within)?,
            "carrier" => asked.carriers = texts(value).map_err(within)?,
            "tag" => asked.tags = texts(value).map_err(within)?,
            "bytes_per_day" => {
                let bytes = value.as_integer().and_then(|bytes| u64::try_from(bytes).ok());
                asked.bytes_per_day = Some(bytes.ok_or_else(|| anyhow!("{name}: {value} is not a number of bytes"))?);
            }
            "unmet" => {
                let text = value.as_str().ok_or_else(|| anyhow!("{name}: {value} is not \"wait\" or \"fail\""))?;
                asked.unmet = Some(text.parse().map_err(|error| anyhow!("{name}: {error}"))?);
            }
            _ => return Err(anyhow!("{name}: there is no such field; there are {FIELDS}")),
        }
    }
    asked.checked().map_err(|error| anyhow!("{error}"))
}

/// One text, or a list of them.
fn texts(value: &Value) -> anyhow::Result<Vec<String>> {
    if let Some(one) = value.as_str() {
        return Ok(vec![one.to_owned()]);
    }
    let texts =
        value.as_array().and_then(|values| values.iter().map(|value| value.as_str().map(str::to_owned)).collect());
    texts.ok_or_else(|| anyhow!("{value} is neither a text nor a list of texts"))
}

/// Constraints, as printed for programs.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    countries: Vec<String>,
    carriers: Vec<String>,
    tags: Vec<String>,
    bytes_per_day: Option<u64>,
    unmet: &'static str,
}

impl From<v1::Constraints> for Shown {
    fn from(asked: v1::Constraints) -> Self {
        let unmet = if asked.unmet() == v1::Unmet::Fail { Unmet::Fail } else { Unmet::Wait }.name();
        let v1::Constraints { countries, carriers, tags, bytes_per_day, .. } = asked;
        Self { countries, carriers, tags, bytes_per_day, unmet }
    }
}

/// Constraints in a line for people; empty when there are none.
pub(super) fn line(asked: &v1::Constraints) -> String {
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
    if asked.unmet() == v1::Unmet::Fail {
        parts.push("else they fail".to_owned());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ConstraintsRequest, String> {
        table(&Value::Table(text.parse().unwrap())).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_go_before_the_file() {
        let file = read("country = ['jp', 'CN']\ncarrier = 'CERNET'\nbytes_per_day = 7\nunmet = 'fail'").unwrap();
        let flags = ConstraintsArgs { country: vec!["kr".into()], tag: vec!["Fast".into()], ..Default::default() };
        let asked = flags.constraints(file).unwrap().unwrap();
        assert_eq!(
            (asked.countries.join(" "), asked.carriers.join(" "), asked.tags.join(" ")),
            ("KR".into(), "CERNET".into(), "fast".into())
        );
        assert_eq!((asked.bytes_per_day, asked.unmet()), (Some(7), v1::Unmet::Fail));
        assert_eq!(line(&asked), "in KR, of CERNET, tagged fast, at most 7 B a day each, else they fail");
        assert_eq!(ConstraintsArgs::default().constraints(ConstraintsRequest::default()).unwrap(), None);
        assert_eq!(line(&v1::Constraints::default()), "");
    }

    #[test]
    fn mistakes_name_the_field() {
        for (text, expected) in [
            ("country = 'CHN'", "country: 'CHN' is not two letters"),
            ("countries = ['CN']", "countries: there is no such field"),
            ("tag = 3", "tag: 3 is neither a text nor a list"),
            ("bytes_per_day = -1", "bytes_per_day: -1 is not a number of bytes"),
            ("unmet = 'perhaps'", "unmet: 'perhaps' is neither wait nor fail"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let flags = ConstraintsArgs { bytes_per_day: Some(0), ..Default::default() };
        let error = flags.constraints(ConstraintsRequest::default()).unwrap_err().to_string();
        assert!(error.starts_with("--bytes-per-day: must be 1"), "{error}");
    }
}
