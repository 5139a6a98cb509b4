//! Runs all checks of a scheduler's machine, and collects their results.

use nix::unistd::Uid;

use super::check_result::CheckResult;
use super::configuration::configuration;
use super::{account, certificates, clock, data_dir, database, names, port};
use crate::app::address::AdvertisedAddress;
use crate::app::start_options::Options;
use crate::app::tls::CA;
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
    let dialled = AdvertisedAddress::of(config.listen, options.advertise.as_ref());
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
