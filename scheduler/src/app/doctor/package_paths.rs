//! Finds the data directory and the configuration of the Debian package, which are checked if no
//! other is named.

use std::path::{Path, PathBuf};

use crate::app::data_dir::DataDir;
use crate::app::start_options::Options;

/// The data directory of the Debian package.
pub(super) const PACKAGE_FOLDER: &str = "/var/lib/landfall";
/// The configuration of the Debian package.
const PACKAGE_FILE: &str = "/etc/landfall/landfall.toml";

/// Adds the paths of the Debian package to options without paths.
pub(crate) fn with_default_paths(options: Options) -> anyhow::Result<Options> {
    let data_dir = match options.data_dir {
        Some(path) => std::path::absolute(path)?,
        None => DataDir::default_path()?,
    };
    let packaged = data_dir == Path::new(PACKAGE_FOLDER) && Path::new(PACKAGE_FILE).exists();
    let config = options.config.or_else(|| packaged.then(|| PathBuf::from(PACKAGE_FILE)));
    Ok(Options { data_dir: Some(data_dir), config, ..options })
}
