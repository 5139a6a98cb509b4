//! `landfall contact` and `landfall operator`: sets and shows the URL by which site owners can reach
//! the operator, and replaces the operator's token.

use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use humantime::parse_duration;
use landfall_proto::json::{moment, rfc3339};
use landfall_proto::v1::{ReplaceOperatorTokenRequest, SetContactUrlRequest, ShowContactUrlRequest};
use tonic::{Code, Status};

use super::ConnectionArgs;
use super::connection::{self, Client};
use super::output::ShowFormatArgs;
use crate::app::exit::print;
use crate::app::token_and_client_file::Successor;
use crate::model::contact_url::ContactUrl;

#[derive(Debug, Subcommand)]
pub(super) enum ContactCommand {
    /// Set the contact URL, which begins with http:, https: or mailto:. Without one, agents send no
    /// requests
    #[command(after_help = "Example:\n  landfall contact set https://example.org/crawler")]
    Set {
        /// The URL
        url: ContactUrl,
    },
    /// Show the contact URL
    Show {
        #[command(flatten)]
        format: ShowFormatArgs,
    },
}

impl ContactCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let client = Client::connect(connection).await?;
        match self {
            Self::Set { url } => {
                let request = SetContactUrlRequest { contact_url: url.to_string() };
                client.answer(client.fleet().set_contact_url(request).await)?;
                print(&format!("the contact URL is {url}\n"))
            }
            Self::Show { format } => {
                let shown = client.answer(client.fleet().show_contact_url(ShowContactUrlRequest {}).await)?;
                format.print(&shown, |shown, _| match shown.contact_url.as_str() {
                    "" => Ok(format!("{NO_CONTACT}\n")),
                    url => Ok(format!("{url}\n")),
                })
            }
        }
    }
}

pub(super) const NO_CONTACT: &str =
    "no contact URL is set, and without one agents send no requests: run `landfall contact set URL`";

/// Maximum time for which the former token may stay valid.
const LONGEST_GRACE: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Debug, Subcommand)]
pub(super) enum OperatorCommand {
    /// Replace the operator's token while schedulers run; agents stay connected, and the old token
    /// becomes invalid
    #[command(after_help = "\
Examples:
  landfall operator rotate
  landfall operator rotate --grace 1h                    for scripts elsewhere that use the old token

All schedulers of the database accept the new token at once. It is written where the old one was read from: to operator-token
and client.toml in the data directory, or to the file that --token-file names. Copy operator-token to the data directories of
the other schedulers; their client.toml is updated within ten seconds.")]
    Rotate(RotateArgs),
}

#[derive(Debug, Args)]
pub(super) struct RotateArgs {
    /// How long the old token stays valid, at most 7d [default: not at all]
    #[arg(long, value_name = "TIME", value_parser = grace)]
    grace: Option<Duration>,
}

fn grace(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text).map_err(|error| error.to_string())?;
    if parsed <= LONGEST_GRACE { Ok(parsed) } else { Err("must be at most 7d".to_owned()) }
}

impl OperatorCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self::Rotate(args) = self;
        args.run(connection).await
    }
}

impl RotateArgs {
    async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let grace = self.grace.map(prost_types::Duration::try_from).transpose().context("--grace")?;
        let client = Client::connect(connection).await?;
        let successor = Successor::draw(&connection::data_dir(connection)?, connection.token_file.as_deref())?;
        let request = ReplaceOperatorTokenRequest { token_sha256: successor.hash().as_bytes().to_vec(), grace };
        let answer = match client.fleet().replace_operator_token(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) if nothing_was_done(&status) => {
                successor.forget()?;
                return Err(client.refusal(&status));
            }
            Err(status) => {
                let beside = successor.beside().display().to_string();
                return Err(client.refusal(&status).context(format!(
                    "it is unknown whether the token was replaced: if the old token is refused from now on, the new one is in {beside}"
                )));
            }
        };
        let files: Vec<String> = successor.adopt()?.iter().map(|file| file.display().to_string()).collect();
        print(&done(&files, grace.and(moment(answer.former_until)), &answer.other_scheduler_urls))
    }
}

/// Describes what was done, and what the operator has to do next.
fn done(files: &[String], good_until: Option<DateTime<Utc>>, others: &[String]) -> String {
    let old = match good_until {
        Some(until) => format!("is accepted until {}", rfc3339(until)),
        None => "is refused from now on".to_owned(),
    };
    let mut said = format!("the operator's new token is in {}\nthe old one {old}\n", files.join(" and "));
    if !others.is_empty() {
        said += &format!(
            "the schedulers at {} also accept the new token: copy operator-token to their data directories\n",
            others.join(", ")
        );
    }
    said
}

/// Whether the scheduler certainly did not replace the token. If its answer was lost, the scheduler
/// may have replaced it.
fn nothing_was_done(status: &Status) -> bool {
    !connection::is_transport(status)
        && matches!(
            status.code(),
            Code::Unauthenticated | Code::InvalidArgument | Code::FailedPrecondition | Code::Unimplemented
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_where_the_new_token_is_and_who_needs_it() {
        let files = ["a/operator-token".to_owned(), "a/client.toml".to_owned()];
        assert_eq!(
            done(&files, None, &[]),
            "the operator's new token is in a/operator-token and a/client.toml\nthe old one is refused from now on\n"
        );
        let said = done(&files[..1], Some(DateTime::UNIX_EPOCH), &["http://b:1".to_owned()]);
        assert!(
            said.contains(
                "the old one is accepted until 1970-01-01T00:00:00.000Z\nthe schedulers at http://b:1 also accept"
            ),
            "{said}"
        );
        assert!(grace("7d").is_ok() && grace("8d").is_err());
    }
}
