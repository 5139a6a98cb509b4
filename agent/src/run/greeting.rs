//! The lines that an agent prints when it starts: its identity and its settings.

use std::net::SocketAddr;

use crate::config::Config;
use crate::{VERSION, metrics};

/// The agent's identity and settings, one line each.
pub(super) fn greeting(config: &Config, beacon_port: Option<u16>, metrics_port: Option<u16>) -> String {
    let Config { name, city, carrier, country, capacity, .. } = config;
    let country = if country.is_empty() { String::new() } else { format!(", {country}") };
    let nets: Vec<String> = config.allow_net.iter().map(ToString::to_string).collect();
    let guard = match nets.as_slice() {
        [] => "public addresses only".to_owned(),
        nets => format!("public addresses and {}", nets.join(", ")),
    };
    let beacon = match (&config.beacon.advertise, beacon_port) {
        (_, None) => "disabled: this agent cannot be a landmark".to_owned(),
        (Some(url), Some(port)) => format!("port {port}, which others reach at {url}"),
        (None, Some(port)) => format!("port {port} of {}", config.beacon.listen.ip()),
    };
    let store = match (&config.store, &config.exec) {
        (store, Some(exec)) => {
            let unused = if store.is_some() { "; [store] is not used" } else { "" };
            format!("the crawler's output is in {}{unused}", exec.folder.display())
        }
        (Some(store), None) => format!("pages are stored in {}", store.folder.display()),
        (None, None) => "pages are not stored: agent.toml has no [store]".to_owned(),
    };
    let crawler = config.exec.as_ref().map_or_else(String::new, |exec| format!(", by {}", exec.command[0]));
    let metrics = config.metrics.zip(metrics_port);
    let metrics =
        metrics.map(|(listen, port)| format!("http://{}{}", SocketAddr::new(listen.ip(), port), metrics::PATH));
    let lines = [
        ("scheduler", Some(config.scheduler.join(", "))),
        ("crawls", Some(format!("{capacity} sites at once, from {guard}{crawler}"))),
        ("beacon", Some(beacon)),
        ("store", Some(store)),
        ("metrics", metrics),
    ];
    let lines = lines.iter().filter_map(|(label, value)| Some((label, value.as_ref()?)));
    let head = format!("landfall-agent {VERSION} is {name} ({city}, {carrier}{country})\n");
    lines.fold(head, |text, (label, value)| format!("{text}  {label:<9}  {value}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_names_the_agent_and_its_settings() {
        let text = "scheduler = 'https://s.example.org:7171'\nname = 'harbin-cernet'\ncity = '哈尔滨'\ncarrier = 'CERNET'\ncountry = 'CN'\n";
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(
            greeting(&config, Some(7180), None).lines().skip(1).collect::<Vec<_>>(),
            [
                "  scheduler  https://s.example.org:7171",
                "  crawls     16 sites at once, from public addresses only",
                "  beacon     port 7180 of 0.0.0.0",
                "  store      pages are not stored: agent.toml has no [store]",
            ]
        );
        let open = format!("{text}allow_net = ['10.0.0.0/8']\nmetrics = '[::1]:0'\n[store]\nfolder = 'pages'\n");
        let shown = greeting(&toml::from_str(&open).unwrap(), None, Some(5));
        assert!(shown.contains("(哈尔滨, CERNET, CN)") && shown.contains("public addresses and 10.0.0.0/8"), "{shown}");
        assert!(shown.contains("cannot be a landmark") && shown.contains("stored in pages"), "{shown}");
        assert!(shown.ends_with("  metrics    http://[::1]:5/metrics\n"), "{shown}");
        let external = format!("{text}[exec]\ncommand = ['wget2', '--mirror']\n");
        let shown = greeting(&toml::from_str(&external).unwrap(), None, None);
        assert!(shown.contains("public addresses only, by wget2\n"), "{shown}");
        assert!(shown.contains("the crawler's output is in exec\n"), "{shown}");
        let both = format!("{external}[store]\nfolder = 'pages'\n");
        let shown = greeting(&toml::from_str(&both).unwrap(), None, None);
        assert!(shown.contains("the crawler's output is in exec; [store] is not used"), "{shown}");
    }
}
