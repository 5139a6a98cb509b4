//! `landfall contact`: sets and shows the URL by which site owners can reach the operator.

use clap::Subcommand;
use landfall_proto::v1::{SetContactUrlRequest, ShowContactUrlRequest};

use super::ConnectionArgs;
use super::connection::Client;
use super::output::ShowFormatArgs;
use crate::app::exit::print;
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
