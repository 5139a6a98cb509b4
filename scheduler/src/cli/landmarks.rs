//! `landfall landmarks`: declares the commands, whose modules run them.

mod dimensions;
pub(super) mod elect;
pub(super) mod embedding;
mod list;
mod set;
mod trust;

use clap::Subcommand;

use self::elect::ElectArgs;
use self::list::ListArgs;
use self::set::{ClearArgs, SetArgs};
use self::trust::TrustArgs;
use super::ConnectionArgs;

#[derive(Debug, Subcommand)]
pub(super) enum LandmarksCommand {
    /// Set the landmarks by hand, replacing the current ones
    Set(SetArgs),
    /// Remove all landmarks; in a fleet of up to nine agents, every agent then measures each site
    Clear(ClearArgs),
    /// List the landmarks
    List(ListArgs),
    /// Release an agent from quarantine; its measurements are deleted, and it measures again
    Trust(TrustArgs),
    /// Elect the landmarks by the round trips between agents, replacing the current ones
    Elect(ElectArgs),
}

impl LandmarksCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Set(args) => args.run(connection).await,
            Self::Clear(args) => args.run(connection).await,
            Self::List(args) => args.run(connection).await,
            Self::Trust(args) => args.run(connection).await,
            Self::Elect(args) => args.run(connection).await,
        }
    }
}
