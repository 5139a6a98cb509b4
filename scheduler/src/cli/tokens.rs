//! `landfall agents tokens` and `revoke`: the one-time tokens that are out.

use clap::Args;
use landfall_proto::v1::{Enrolment, EnrolmentState, ListEnrolmentsRequest, RevokeEnrolmentRequest};
use serde::Serialize;

use super::ConnectionArgs;
use super::client::Client;
use super::output::{self, Format, FormatArgs, Row, Time, View};
use crate::exit::print;

#[derive(Debug, Args)]
pub(super) struct TokensArgs {
    /// Those that were used or revoked or have expired as well, until they are forgotten (`keep.enrolments`)
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    format: FormatArgs<TokenRow>,
}

impl TokensArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { all, format: FormatArgs { format, wide } } = self;
        let client = Client::connect(connection).await?;
        let listed = client.fleet().list_enrolments(ListEnrolmentsRequest { all }).await;
        let listed = listed.map_err(|status| client.refusal(&status))?.into_inner();
        if listed.older > 0 {
            eprintln!("note: {} are not shown", output::counted(listed.older, "older token"));
        }
        if listed.enrolments.is_empty() && format == Format::Table {
            let known = if all { "remembered" } else { "open" };
            return print(&format!("no tokens are {known}: landfall agents enrol --city CITY --isp ISP\n"));
        }
        let rows: Vec<TokenRow> = listed.enrolments.into_iter().map(TokenRow::from).collect();
        output::print_rows(&rows, format, &wide.view())
    }
}

/// `landfall agents revoke`.
pub(super) async fn revoke(named: String, connection: &ConnectionArgs) -> anyhow::Result<()> {
    let client = Client::connect(connection).await?;
    let revoked = client.fleet().revoke_enrolment(RevokeEnrolmentRequest { named }).await;
    let revoked = revoked.map_err(|status| client.refusal(&status))?.into_inner();
    let name = revoked.name;
    print(&match revoked.before {
        true => format!("the token for {name} was revoked before\n"),
        false => format!("the token for {name} is revoked: nobody can enrol with it\n"),
    })
}

/// One token, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct TokenRow {
    enrolment_id: String,
    name: String,
    city: String,
    carrier: String,
    country: String,
    state: &'static str,
    made_at: Option<Time>,
    expires_at: Option<Time>,
    ended_at: Option<Time>,
    replaces: bool,
}

impl From<Enrolment> for TokenRow {
    fn from(token: Enrolment) -> Self {
        let state = match token.state() {
            EnrolmentState::Open => "open",
            EnrolmentState::Used => "used",
            EnrolmentState::Expired => "expired",
            EnrolmentState::Revoked => "revoked",
            EnrolmentState::Unspecified => "unknown",
        };
        Self {
            enrolment_id: token.enrolment_id,
            name: token.name,
            city: token.city,
            carrier: token.carrier,
            country: token.country,
            state,
            made_at: output::time(token.made_at.as_ref()),
            expires_at: output::time(token.expires_at.as_ref()),
            ended_at: output::time(token.ended_at.as_ref()),
            replaces: token.replaces,
        }
    }
}

impl Row for TokenRow {
    const COLUMNS: &'static [&'static str] =
        &["name", "id", "city", "carrier", "state", "made", "ends", "replaces", "+country"];

    fn cells(&self, view: &View) -> Vec<String> {
        vec![
            self.name.clone(),
            self.enrolment_id.clone(),
            self.city.clone(),
            self.carrier.clone(),
            self.state.to_owned(),
            view.when(self.made_at),
            view.when(self.ended_at.or(self.expires_at)),
            output::yes_cell(self.replaces),
            output::text_cell(&self.country),
        ]
    }
}
