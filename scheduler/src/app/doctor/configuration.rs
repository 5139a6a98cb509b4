//! Checks the configuration, and whether other users can read a database URL in it.

use std::path::Path;

use super::check_result::CheckResult;
use super::time_limit::reading;
use crate::app::exit::sentence;
use crate::app::start_options::{self, Configuration, Options};
use crate::config::Config;
use crate::jobs::geoip::GeoIp;

/// Checks the configuration. Returns the configuration if it is valid.
pub(super) async fn configuration(options: &Options) -> (Vec<CheckResult>, Option<Config>) {
    const CHECK: &str = "config";
    let asked = options.clone();
    let read = reading(CHECK, move || {
        let read = start_options::configuration(&asked)?;
        read.config.geoip.as_deref().map(GeoIp::open).transpose()?;
        anyhow::Ok(read)
    });
    let Configuration { config, exposed } = match read.await {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => {
            let remedy = "correct this setting; docs/operate/settings.md describes all of them";
            return (vec![CheckResult::wrong(CHECK, sentence(&error), remedy)], None);
        }
        Err(hangs) => return (vec![hangs], None),
    };
    let said = match &options.config {
        Some(file) => format!("{}: every value is in its range", file.display()),
        None => "no file is given (--config): defaults, options and LANDFALL_* variables".to_owned(),
    };
    let mut results = vec![CheckResult::ok(CHECK, said)];
    if let Some(file) = exposed.as_deref().map(Path::display) {
        let text = format!("every user of this machine can read the database_url in {file}");
        results.push(CheckResult::wrong(CHECK, text, format!("run chmod o= {file}")));
    }
    (results, Some(config))
}
