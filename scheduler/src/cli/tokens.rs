//! `landfall agents tokens` and `revoke`: the one-time tokens that are out.

use clap::Args;
use landfall_proto::json::Word as _;
use landfall_proto::v1::{Enrolment, ListEnrolmentsRequest, RevokeEnrolmentRequest};

use super::ConnectionArgs;
use super::client::Client;
use super::output::{self, Column, Format, FormatArgs, Row};
use crate::exit::print;

#[derive(Debug, Args)]
pub(super) struct TokensArgs {
    /// Those that were used or revoked or have expired as well, until they are forgotten (`keep.enrolments`)
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    format: FormatArgs<Enrolment>,
}

impl TokensArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { all, format: FormatArgs { format, wide } } = self;
        let client = Client::connect(connection).await?;
        let listed = client.answer(client.fleet().list_enrolments(ListEnrolmentsRequest { all }).await)?;
        if listed.older > 0 {
            eprintln!("note: {} are not shown", output::counted(listed.older, "older token"));
        }
        if listed.enrolments.is_empty() && format == Format::Table {
            let known = if all { "remembered" } else { "open" };
            return print(&format!("no tokens are {known}: landfall agents enrol --city CITY --isp ISP\n"));
        }
        output::print_rows(&listed.enrolments, format, &wide.view())
    }
}

/// `landfall agents revoke`.
pub(super) async fn revoke(named: String, connection: &ConnectionArgs) -> anyhow::Result<()> {
    let client = Client::connect(connection).await?;
    let revoked = client.answer(client.fleet().revoke_enrolment(RevokeEnrolmentRequest { named }).await)?;
    let name = revoked.name;
    print(&match revoked.before {
        true => format!("the token for {name} was revoked before\n"),
        false => format!("the token for {name} is revoked: nobody can enrol with it\n"),
    })
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
