//! States the version of this program.

/// The version, followed by the commit if it was passed to the build: `0.1.0+f2acb2d8`.
/// `ops/package.sh` passes the commit. The build does not read it from git, because every commit
/// would then cause a rebuild.
pub const VERSION: &str = match option_env!("LANDFALL_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
/// The version with the commit and its date, for display.
pub const LONG_VERSION: &str = match option_env!("LANDFALL_LONG_VERSION") {
    Some(version) => version,
    None => concat!(env!("CARGO_PKG_VERSION"), " (built by hand: the commit was not recorded)"),
};
