//! Prints a one-time token with the command that uses it on the agent's machine.

use chrono::{DateTime, Utc};
use landfall_proto::json;
use landfall_proto::v1::CreateEnrolmentResponse;
use prost_types::Timestamp;
use serde::Serialize;

use crate::app::exit::quoted;
use crate::cli::contact_and_operator::NO_CONTACT;
use crate::cli::output::{Column, Row, View, relative};

pub(super) fn warn_without_contact(made: &CreateEnrolmentResponse) {
    if made.contact_url.is_empty() {
        eprintln!("warning: {NO_CONTACT}");
    }
}

/// An enrolment with its token and the command that uses the token, as printed in JSON.
#[derive(Debug, Clone, Default, Serialize)]
pub(in crate::cli) struct Enrolment {
    pub(super) name: String,
    enrolment_id: String,
    token: String,
    #[serde(serialize_with = "json::time")]
    expires_at: Option<Timestamp>,
    scheduler_url: String,
    other_scheduler_urls: Vec<String>,
    ca_fingerprint: Option<String>,
    #[serde(serialize_with = "json::some")]
    contact_url: String,
    pub(super) replaces: bool,
    pub(super) in_use: bool,
    pub(super) command: String,
}

impl Enrolment {
    pub(in crate::cli) fn new(made: CreateEnrolmentResponse, reached_at: &str) -> Self {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let scheduler_url = some(made.scheduler_url).unwrap_or_else(|| reached_at.to_owned());
        let ca_fingerprint = some(made.ca_fingerprint);
        let schedulers: Vec<&str> =
            std::iter::once(&scheduler_url).chain(&made.other_scheduler_urls).map(String::as_str).collect();
        let schedulers = schedulers.join(",");
        let mut command =
            format!("landfall-agent enrol --scheduler {} --token {}", quoted(&schedulers), quoted(&made.token));
        if let Some(fingerprint) = &ca_fingerprint {
            command = format!("{command} --ca-fingerprint {}", quoted(fingerprint));
        }
        Self {
            name: made.name,
            enrolment_id: made.enrolment_id,
            token: made.token,
            expires_at: made.expires_at,
            scheduler_url,
            other_scheduler_urls: made.other_scheduler_urls,
            ca_fingerprint,
            contact_url: made.contact_url,
            replaces: made.replaces,
            in_use: made.in_use,
            command,
        }
    }

    pub(super) fn text(&self, now: DateTime<Utc>) -> String {
        let Self { name, command, .. } = self;
        let moved = match self.replaces && self.in_use {
            true => format!(
                "# {name} is in use. Using the token moves {name} to the new machine: the credential of the former \
                 one becomes void,\n# its session ends, and other agents get its crawls. Until then nothing changes.\n"
            ),
            false => String::new(),
        };
        format!(
            "{command}\n# run this once on the machine of {name}{}; then: landfall-agent run\n{moved}",
            self.until(now)
        )
    }

    pub(super) fn until(&self, now: DateTime<Utc>) -> String {
        json::moment(self.expires_at)
            .map(|at| format!(" (the token expires {})", relative(at, now)))
            .unwrap_or_default()
    }
}

/// An enrolment as a row of CSV.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(in crate::cli) struct EnrolmentRow(#[serde(with = "EnrolmentFields")] pub(in crate::cli) Enrolment);

#[derive(Serialize)]
#[serde(remote = "Enrolment")]
struct EnrolmentFields {
    name: String,
    enrolment_id: String,
    token: String,
    #[serde(serialize_with = "json::time")]
    expires_at: Option<Timestamp>,
    command: String,
}

impl Row for EnrolmentRow {
    const COLUMNS: &'static [Column<Self>] =
        &[("name", |row, _| row.0.name.clone()), ("command", |row, _| row.0.command.clone())];
    // `--quiet` prints the tokens instead of the names, because a token cannot be printed again
    // later.
    const NAMES: &'static str = "the tokens";

    fn name(&self, _: &View) -> String {
        self.0.token.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(made: CreateEnrolmentResponse) -> Enrolment {
        Enrolment::new(CreateEnrolmentResponse { token: "abc".to_owned(), ..made }, "http://127.0.0.1:1")
    }

    #[test]
    fn enrolling_prints_one_command_and_what_comes_after() {
        let made = CreateEnrolmentResponse {
            name: "harbin-cernet".to_owned(),
            scheduler_url: "https://s.example.org:7171".to_owned(),
            ca_fingerprint: "00ff".to_owned(),
            ..CreateEnrolmentResponse::default()
        };
        let text = row(made.clone()).text(DateTime::UNIX_EPOCH);
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some("landfall-agent enrol --scheduler https://s.example.org:7171 --token abc --ca-fingerprint 00ff")
        );
        assert!(lines.next().is_some_and(|line| line.starts_with('#') && line.contains("landfall-agent run")));
        assert_eq!(lines.next(), None);
        let replaces = row(CreateEnrolmentResponse { replaces: true, in_use: true, ..made }).text(DateTime::UNIX_EPOCH);
        assert!(replaces.contains("# harbin-cernet is in use. Using the token moves"), "{replaces}");
        let made = CreateEnrolmentResponse {
            other_scheduler_urls: vec!["http://127.0.0.1:2".to_owned()],
            ..CreateEnrolmentResponse::default()
        };
        let command = row(made).command;
        assert_eq!(command, "landfall-agent enrol --scheduler http://127.0.0.1:1,http://127.0.0.1:2 --token abc");
    }
}
