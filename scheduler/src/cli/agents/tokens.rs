//! `landfall agents tokens|revoke`: lists and revokes one-time tokens.

use clap::Args;
use landfall_proto::json::Word;
use landfall_proto::v1::{Enrolment, EnrolmentState, ListEnrolmentsRequest, RevokeEnrolmentRequest};

use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::filters::{PlaceArgs, one_of};
use crate::cli::output::{self, Column, FormatArgs, Row};

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
    #[command(flatten)]
    format: FormatArgs<Enrolment>,
}

impl TokensArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { all, state, places, format } = self;
        let any = state.is_empty() && places.are_unset();
        let request = ListEnrolmentsRequest {
            all,
            cities: places.city,
            carriers: places.carrier,
            countries: places.country,
            states: state.into_iter().map(Into::into).collect(),
        };
        let client = Client::connect(connection).await?;
        let listed = client.answer(client.fleet().list_enrolments(request).await)?;
        if listed.older > 0 {
            eprintln!("note: {} are not shown", output::counted(listed.older, "older token"));
        }
        let known = if all { "kept" } else { "open" };
        let none = if any {
            format!("no tokens are {known}: landfall agents enrol --city CITY --carrier CARRIER\n")
        } else {
            "no token matches\n".to_owned()
        };
        format.print(&listed.enrolments, &none, 0)
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

impl Row for Enrolment {
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
