//! What the agent reports about itself when it opens a session, and with which credential.

use anyhow::Context as _;

use crate::config::Config;
use crate::session::schedulers::Schedulers;
use crate::{VERSION, session};

pub(super) fn session_config(config: &Config, beacon_port: Option<u16>) -> anyhow::Result<session::SessionConfig> {
    let read = |key: &str, file: &std::path::Path| {
        std::fs::read_to_string(file).with_context(|| format!("{key}: read {}", file.display()))
    };
    Ok(session::SessionConfig {
        schedulers: Schedulers::try_new(&config.scheduler)?,
        ca: config.ca.as_deref().map(|file| read("ca", file)).transpose()?,
        credential: session::bearer(&read("credential", &config.credential)?, &config.credential)?,
        bind: config.bind,
        register: landfall_proto::v1::Register {
            name: config.name.clone(),
            city: config.city.clone(),
            carrier: config.carrier.clone(),
            country: config.country.clone(),
            capacity: config.capacity,
            version: VERSION.to_owned(),
            beacon_url: config.beacon.advertise.clone().filter(|_| beacon_port.is_some()).unwrap_or_default(),
            beacon_port: beacon_port.map_or(0, u32::from),
            held: Vec::new(),
            yields: false,
            process: rand::random_range(1..=i64::MAX),
        },
    })
}
