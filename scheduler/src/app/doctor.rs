//! `landfall doctor`: checks everything that a scheduler needs on its machine, and suggests a
//! remedy for each fault.
//!
//! Each check has a file in the folder `doctor`, with functions that read the facts about one
//! subject, and functions that judge these facts. Doctor changes nothing and takes no lock, so it
//! may run before the first start and while a scheduler runs. The checks run at the same time, each
//! with a time limit.

use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use crate::app::data_dir::DataDir;
use crate::app::exit::sentence;
use crate::app::tls::CA;
use crate::app::up::{self, Configuration, Options};
use crate::config::Config;
use crate::jobs::locate::geoip::GeoIp;
use crate::machine::clock::now;

mod account;
mod certificates;
mod check_result;
mod clock;
mod data_dir;
mod database;
mod names;
mod port;
mod served_certificate;
mod time_limit;

use data_dir::PACKAGE_FOLDER;
use time_limit::reading;

pub(crate) use certificates::of_scheduler;
pub(crate) use check_result::{CheckResult, State};
pub(crate) use time_limit::in_time;

/// The configuration of the Debian package.
const PACKAGE_FILE: &str = "/etc/landfall/landfall.toml";

/// The results of all checks on a machine.
#[derive(Debug)]
pub(crate) struct Examination {
    pub(crate) results: Vec<CheckResult>,
    /// Whether a scheduler answers at the listening address.
    pub(crate) answers: bool,
    /// The contact URL; `None` if it could not be read, empty if none is set.
    pub(crate) contact_url: Option<String>,
}

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

/// Checks everything that a scheduler with these options needs on this machine.
pub(crate) async fn examine(options: &Options) -> Examination {
    let (configuration, config) = configuration(options).await;
    let mut results = configuration;
    let data_dir = options.data_dir.clone().unwrap_or_default();
    let folder = match data_dir::look(&data_dir).await {
        Ok(folder) => folder,
        Err(hangs) => {
            results.push(hangs);
            return Examination { results, answers: false, contact_url: None };
        }
    };
    results.extend(data_dir::judge(&folder));
    let scheduler = folder.owner.unwrap_or_else(Uid::effective);
    let Some(config) = config else {
        results.push(account::judge(&account::AccountFacts::of(scheduler, None)));
        results.push(CheckResult::skip("more", "the configuration is needed to check the rest: correct it first"));
        return Examination { results, answers: false, contact_url: None };
    };

    let private = config.database_url.is_none();
    let dialled = crate::app::address::AdvertisedAddress::of(config.listen, options.advertise.as_ref());
    let ca = data_dir.join("tls").join(CA);
    let (port, database, names, synchronised) = tokio::join!(
        port::look(config.listen, &ca),
        database::look(config.database_url.as_deref(), &data_dir, scheduler),
        names::look(&dialled.host),
        clock::synchronised(),
    );
    let holder = folder.holder();
    results.push(account::judge(&account::AccountFacts::of(scheduler, Some((config.listen.port(), private)))));
    results.extend(database.results(private, holder));
    results.push(port::judge(config.listen, &port, holder));
    let tls = !config.listen.ip().is_loopback();
    results.push(match tls {
        true => names::judge(&dialled, options.advertise.is_some(), config.listen, &names),
        false => {
            CheckResult::skip("name", "agents on other machines cannot connect: the scheduler listens on loopback")
        }
    });
    results.extend(certificates::judge(&data_dir, tls.then_some(&*dialled.host), &port, now()));
    results.push(clock::judge(synchronised, database.clock_offset()));
    Examination { results, answers: port.answers(), contact_url: config.contact_url.or_else(|| database.contact_url()) }
}

/// Checks the configuration. Returns the configuration if it is valid.
async fn configuration(options: &Options) -> (Vec<CheckResult>, Option<Config>) {
    const CHECK: &str = "config";
    let asked = options.clone();
    let read = reading(CHECK, move || {
        let read = up::configuration(&asked)?;
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

#[cfg(test)]
mod tests;
