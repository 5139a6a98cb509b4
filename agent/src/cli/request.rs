//! The settings that `probe` and `crawl` need to send requests. Settings missing on the command
//! line come from agent.toml.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;

use super::run::config_file;
use crate::cli::exit::usage;
use crate::config::{Config, parse_name_server};
use crate::net::dns::Resolver;
use crate::net::guard::{Guard, OPEN, parse_network};
use crate::net::request_context::{RequestContext, tls_config};
use crate::net::user_agent::UserAgent;

/// Who sends the requests, and where they may go.
#[derive(Debug, Args)]
pub(super) struct RequestArgs {
    /// The URL at which site owners can contact you [default: contact_url in agent.toml]
    #[arg(long, env = "LANDFALL_CONTACT_URL", value_name = "URL")]
    contact_url: Option<String>,
    /// A network that may be probed and crawled although it is not public; may be repeated.
    #[arg(long, value_name = "CIDR", value_parser = parse_network)]
    allow_net: Vec<IpNet>,
    /// The name server [default: dns in agent.toml, or the system's]
    #[arg(long, value_name = "ADDR", value_parser = parse_name_server)]
    dns: Option<SocketAddr>,
    /// Certificate authorities (PEM) to trust in addition to the public web's.
    #[arg(long, value_name = "FILE")]
    extra_ca: Option<PathBuf>,
    /// The agent's folder; its agent.toml supplies the settings that are not given here.
    #[arg(long, env = "LANDFALL_AGENT_DIR")]
    dir: Option<PathBuf>,
}

impl RequestArgs {
    pub(super) fn context(&self) -> anyhow::Result<RequestContext> {
        let file = config_file(self.dir.clone());
        let config = if file.exists() { Some(Config::load(&file)?) } else { None };
        let config = config.as_ref();
        let contact = self.contact_url.as_deref().or(config.and_then(|config| config.contact_url.as_deref()));
        let Some(contact) = contact else {
            return Err(usage(format!(
                "a contact URL is required: give --contact-url, or set contact_url in {}",
                file.display()
            )));
        };
        let mut allowed = self.allow_net.clone();
        allowed.extend(config.iter().flat_map(|config| config.allow_net.iter().copied()));
        for net in &allowed {
            eprintln!("{net}: {OPEN}");
        }
        let extra_ca = self.extra_ca.as_deref().or(config.and_then(|config| config.extra_ca.as_deref()));
        Ok(RequestContext {
            guard: Guard::new(allowed),
            resolver: match (self.dns, config) {
                (None, Some(config)) => config.resolver()?,
                (server, _) => Resolver::new(server)?,
            },
            user_agent: UserAgent::new(contact)?,
            bind: config.and_then(|config| config.bind),
            tls: tls_config(extra_ca)?,
        })
    }
}

/// Parses `250ms`, `1s` or `2m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        unit => return Err(format!("'{unit}' is not a unit: use ms, s or m")),
    };
    let number: f64 = digits.parse().map_err(|_| format!("'{digits}' is not a number"))?;
    Duration::try_from_secs_f64(number * unit).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_unit() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "s", "1h", "-1s", "1 s x", "NaNs"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
