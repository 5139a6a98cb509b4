//! Runs all checks of a scheduler's machine, and collects their results.

use nix::unistd::Uid;

use super::check_result::CheckResult;
use super::data_dir_and_configuration::{AccountFacts, configuration, judge_data_dir, judge_user, look_at_data_dir};
use super::database;
use super::host_name_and_clock::{judge_clock, judge_name, resolve, synchronised};
use super::port_and_certificates::{judge_certificates, judge_port, look_at_port};
use crate::app::address::AdvertisedAddress;
use crate::app::certificate_authority::CA;
use crate::app::start_options::Options;
use crate::machine::clock::now;

/// The results of all checks on a machine.
#[derive(Debug)]
pub(crate) struct Examination {
    pub(crate) results: Vec<CheckResult>,
    /// Whether a scheduler answers at the listening address.
    pub(crate) answers: bool,
    /// The contact URL; `None` if it could not be read, empty if none is set.
    pub(crate) contact_url: Option<String>,
}

/// Checks everything that a scheduler with these options needs on this machine.
pub(crate) async fn examine(options: &Options) -> Examination {
    let (configuration, config) = configuration(options).await;
    let mut results = configuration;
    let data_dir = options.data_dir.clone().unwrap_or_default();
    let folder = match look_at_data_dir(&data_dir).await {
        Ok(folder) => folder,
        Err(hangs) => {
            results.push(hangs);
            return Examination { results, answers: false, contact_url: None };
        }
    };
    results.extend(judge_data_dir(&folder));
    let scheduler = folder.owner.unwrap_or_else(Uid::effective);
    let Some(config) = config else {
        results.push(judge_user(&AccountFacts::of(scheduler, None)));
        results.push(CheckResult::skip("more", "the configuration is needed to check the rest: correct it first"));
        return Examination { results, answers: false, contact_url: None };
    };

    let private = config.database_url.is_none();
    let dialled = AdvertisedAddress::of(config.listen, options.advertise.as_ref());
    let ca = data_dir.join("tls").join(CA);
    let (port, database, names, synchronised) = tokio::join!(
        look_at_port(config.listen, &ca),
        database::look(config.database_url.as_deref(), &data_dir, scheduler),
        resolve(&dialled.host),
        synchronised(),
    );
    let holder = folder.holder();
    results.push(judge_user(&AccountFacts::of(scheduler, Some((config.listen.port(), private)))));
    results.extend(database.results(private, holder));
    results.push(judge_port(config.listen, &port, holder));
    let tls = !config.listen.ip().is_loopback();
    results.push(match tls {
        true => judge_name(&dialled, options.advertise.is_some(), config.listen, &names),
        false => {
            CheckResult::skip("name", "agents on other machines cannot connect: the scheduler listens on loopback")
        }
    });
    results.extend(judge_certificates(&data_dir, tls.then_some(&*dialled.host), &port, now()));
    results.push(judge_clock(synchronised, database.clock_offset()));
    Examination { results, answers: port.answers(), contact_url: config.contact_url.or_else(|| database.contact_url()) }
}
