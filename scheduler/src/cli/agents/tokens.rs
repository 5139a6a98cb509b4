//! `landfall agents tokens|revoke`: lists and revokes one-time tokens. A new token is printed with
//! the command that uses it on the agent's machine.

use chrono::{DateTime, Utc};
use clap::Args;
use landfall_proto::json::{self, Word};
use landfall_proto::v1::{
    self, CreateEnrolmentResponse, EnrolmentState, ListEnrolmentsRequest, RevokeEnrolmentRequest,
};
use prost_types::Timestamp;
use serde::Serialize;

use crate::app::exit::{print, quoted};
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::contact_and_operator::NO_CONTACT;
use crate::cli::filters::{PlaceArgs, one_of};
use crate::cli::output::{self, Column, FormatArgs, Row, View, relative};
use crate::cli::pages::pages;

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

const TOKEN_STATES: [EnrolmentState; 4] =
    [EnrolmentState::Open, EnrolmentState::Used, EnrolmentState::Expired, EnrolmentState::Revoked];

#[derive(Debug, Args)]
pub(in crate::cli) struct TokensArgs {
    /// Include the used, revoked and expired tokens that are still kept (`keep.enrolments`)
    #[arg(long)]
    all: bool,
    /// Only tokens in this state; may be repeated
    #[arg(long, value_name = "STATE", value_parser = one_of(TOKEN_STATES, EnrolmentState::word))]
    state: Vec<EnrolmentState>,
    #[command(flatten)]
    places: PlaceArgs,
    /// Maximum number of tokens, oldest first; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u64,
    #[command(flatten)]
    format: FormatArgs<v1::Enrolment>,
}

impl TokensArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { all, state, places, limit, format } = self;
        let any = state.is_empty() && places.are_unset();
        let request = ListEnrolmentsRequest {
            all,
            cities: places.city,
            carriers: places.carrier,
            countries: places.country,
            states: state.into_iter().map(Into::into).collect(),
            ..ListEnrolmentsRequest::default()
        };
        let client = Client::connect(connection).await?;
        let listed = pages(limit, async |limit, page_token| {
            let request = ListEnrolmentsRequest { limit, page_token, ..request.clone() };
            client.answer(client.fleet().list_enrolments(request).await)
        });
        let listed = listed.await?;
        let known = if all { "kept" } else { "open" };
        let none = if any {
            format!("no tokens are {known}: landfall agents enrol --city CITY --carrier CARRIER\n")
        } else {
            "no token matches\n".to_owned()
        };
        format.print(&listed.enrolments, &none, listed.more)
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall agents revoke harbin-cernet")]
pub(in crate::cli) struct RevokeArgs {
    /// The agent the token was made for, or the token's id
    #[arg(value_name = "NAME")]
    name: String,
}

impl RevokeArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let client = Client::connect(connection).await?;
        let revoked =
            client.answer(client.fleet().revoke_enrolment(RevokeEnrolmentRequest { named: self.name }).await)?;
        let name = revoked.name;
        print(&match revoked.before {
            true => format!("the token for {name} was already revoked\n"),
            false => format!("the token for {name} is revoked: nobody can enrol with it\n"),
        })
    }
}

impl Row for v1::Enrolment {
    const COLUMNS: &'static [Column<Self>] = &[
        ("name", |row, _| row.name.clone()),
        ("id", |row, _| row.enrolment_id.clone()),
        ("city", |row, _| row.city.clone()),
        ("carrier", |row, _| row.carrier.clone()),
        ("state", |row, _| row.state().word_or_unknown().to_owned()),
        ("made", |row, view| view.when(row.made_at)),
        ("ends", |row, view| view.when(row.ended_at.or(row.expires_at))),
        ("replaces", |row, _| output::yes_cell(row.replaces)),
        ("+country", |row, _| output::text_cell(&row.country)),
    ];
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
