//! `landfall contact`: the URL by which the owner of a site reaches the operator.

use clap::Subcommand;
use landfall_proto::v1::{SetContactUrlRequest, ShowContactUrlRequest};
use serde::Serialize;

use super::ConnectionArgs;
use super::client::Client;
use super::output::{self, ShowFormat, ShowFormatArgs};
use crate::contact::ContactUrl;
use crate::exit::print;

#[derive(Debug, Subcommand)]
pub(super) enum ContactCommand {
    /// Set it: an http or https URL, or mailto:. Agents send no request to a site without one
    #[command(after_help = "Example:\n  landfall contact set https://example.org/crawler")]
    Set {
        /// The URL
        url: ContactUrl,
    },
    /// Show it
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
                client.fleet().set_contact_url(request).await.map_err(|status| client.refusal(&status))?;
                print(&format!("the contact URL is {url}\n"))
            }
            Self::Show { format } => {
                let shown = client.fleet().show_contact_url(ShowContactUrlRequest {}).await;
                let url = shown.map_err(|status| client.refusal(&status))?.into_inner().contact_url;
                match format.format {
                    ShowFormat::Json => {
                        output::print_json(&Shown { contact_url: Some(url).filter(|url| !url.is_empty()) })
                    }
                    ShowFormat::Table if url.is_empty() => print(NO_CONTACT),
                    ShowFormat::Table => print(&format!("{url}\n")),
                }
            }
        }
    }
}

/// Said where there is none.
const NO_CONTACT: &str =
    "no contact URL is set, and agents send no request to a site without one: landfall contact set URL\n";

/// The contact URL, as programs get it.
#[derive(Debug, Serialize)]
struct Shown {
    contact_url: Option<String>,
}
