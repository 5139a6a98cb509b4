//! Checks the settings of `agent.toml`: ranges, and rules that concern several settings.

use super::error::ConfigError;
use super::exec::ExecConfig;
use super::scheduler_url::SchedulerUrl;
use super::settings::Config;
use super::store::StoreConfig;
use crate::net::user_agent::UserAgent;

const MAX_CAPACITY: u32 = 10_000;

impl Config {
    /// Checks the rules that concern several fields.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |key, reason: String| Err(ConfigError::Invalid { key, reason });
        for (key, value) in [("name", &self.name), ("city", &self.city), ("carrier", &self.carrier)] {
            if value.trim().is_empty() {
                return invalid(key, "must not be empty".to_owned());
            }
        }
        if !(1..=MAX_CAPACITY).contains(&self.capacity) {
            return invalid("capacity", format!("{} is not in 1 to {MAX_CAPACITY}", self.capacity));
        }
        if let Some(contact) = &self.contact_url
            && let Err(error) = UserAgent::new(contact)
        {
            return invalid("contact_url", error.to_string());
        }
        if let Some(listen) = self.metrics
            && !self.metrics_public
            && !listen.ip().to_canonical().is_loopback()
        {
            return invalid(
                "metrics",
                format!(
                    "{listen} is not a loopback address, and everybody who reaches it could read the metrics; to permit \
                     that, set metrics_public = true in agent.toml"
                ),
            );
        }
        if let Some(url) = &self.beacon.advertise
            && let Err(error) = url.parse::<crate::net::origin::Origin>()
        {
            return invalid("beacon.advertise", error.to_string());
        }
        if let Some(StoreConfig { max_file_bytes, .. }) = &self.store
            && !StoreConfig::FILE_BYTES.contains(max_file_bytes)
        {
            return invalid("store.max_file_bytes", format!("{max_file_bytes} is not in 1 MiB to 10 GiB"));
        }
        self.exec.as_ref().map_or(Ok(()), ExecConfig::validate)?;
        let schedulers = match SchedulerUrl::parse_all(&self.scheduler) {
            Ok(schedulers) => schedulers,
            Err(error) => return invalid("scheduler", error.to_string()),
        };
        if schedulers.iter().any(|scheduler| scheduler.tls) && self.ca.is_none() {
            return invalid(
                "ca",
                "an https scheduler requires the authority that signed its certificate (PEM)".to_owned(),
            );
        }
        Ok(())
    }
}
