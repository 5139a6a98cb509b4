//! `landfall contact`: the URL by which the owner of a site reaches the operator.

use clap::Subcommand;
use landfall_proto::v1::SetContactUrlRequest;

use super::ConnectionArgs;
use super::client::Client;
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
}

impl ContactCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self::Set { url } = self;
        let client = Client::connect(connection).await?;
        let request = SetContactUrlRequest { contact_url: url.to_string() };
        client.fleet().set_contact_url(request).await.map_err(|status| client.refusal(&status))?;
        print(&format!("the contact URL is {url}\n"))
    }
}
