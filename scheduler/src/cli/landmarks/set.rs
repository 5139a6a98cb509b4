//! `landfall landmarks set|clear`: sets the landmarks by hand, or removes them.

use std::collections::HashSet;

use clap::Args;
use landfall_proto::v1::{Landmark, SetLandmarksRequest};

use super::dimensions::dimensions;
use super::list::{FEWEST, print_chosen};
use crate::app::exit::usage;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::FormatArgs;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall landmarks set beijing-telecom shanghai-unicom harbin-cernet")]
pub(in crate::cli) struct SetArgs {
    /// Agents, by name
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Dimensions of the map, at most landmarks - 1 [default: min(8, landmarks - 1)]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    dims: Option<u32>,
    #[command(flatten)]
    format: FormatArgs<Landmark>,
}

impl SetArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { names, dims, format } = self;
        let mut seen = HashSet::new();
        if let Some(name) = names.iter().find(|name| !seen.insert(name.as_str())) {
            return Err(usage(format!("the landmark '{name}' is named twice")));
        }
        let dimensions = dimensions(dims, names.len())?;
        let client = Client::connect(connection).await?;
        if names.len() < FEWEST {
            eprintln!("{}", too_few(names.len()));
        }
        let request = SetLandmarksRequest { names, dimensions };
        print_chosen(client.answer(client.fleet().set_landmarks(request).await)?, &format)
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ClearArgs {
    #[command(flatten)]
    format: FormatArgs<Landmark>,
}

impl ClearArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let client = Client::connect(connection).await?;
        let cleared = client.fleet().set_landmarks(SetLandmarksRequest::default()).await;
        print_chosen(client.answer(cleared)?, &self.format)
    }
}

/// A warning that there are too few landmarks to locate a site.
fn too_few(landmarks: usize) -> String {
    let s = if landmarks == 1 { "" } else { "s" };
    format!(
        "warning: only {landmarks} landmark{s} measure{} each site, but its distance to other agents cannot be \
         estimated with fewer than three; `landfall landmarks clear` removes them",
        if s.is_empty() { "s" } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_landmarks_are_warned_about() {
        assert!(too_few(1).starts_with("warning: only 1 landmark measures each site, but its distance"));
        assert!(too_few(2).starts_with("warning: only 2 landmarks measure each"));
    }
}
