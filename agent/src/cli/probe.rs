//! `landfall-agent probe`: every sample as it comes, its phases, then the weighted mean.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{config_file, name_server};
use crate::config::Config;
use crate::context::{Context, tls_config};
use crate::dns::Resolver;
use crate::guard::Guard;
use crate::probe::weighted_mean::{Summary, mean, weighted_mean};
use crate::probe::{self, Metric, Observation, Order, Phases, Probed, Target};
use crate::user_agent::UserAgent;

/// What to measure, and how.
#[derive(Debug, Args)]
pub(super) struct ProbeArgs {
    /// An http or https URL, or a bare host (https, then http).
    url: String,
    /// Samples to take; the connection's first request is not one of them.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// What is taken for distance.
    #[arg(long, value_enum, default_value_t = MetricArg::Ttfb)]
    metric: MetricArg,
    /// The pause before every request.
    #[arg(long, default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// How long one request may take.
    #[arg(long, default_value = "5s", value_parser = duration)]
    timeout: Duration,
    /// Where site owners reach you; from agent.toml by default.
    #[arg(long, value_name = "URL")]
    contact_url: Option<String>,
    /// A network that may be probed though it is not public; may be repeated.
    #[arg(long, value_name = "CIDR")]
    allow_net: Vec<IpNet>,
    /// The name server to ask.
    #[arg(long, value_name = "ADDR", value_parser = name_server)]
    dns: Option<SocketAddr>,
    /// Certificates (PEM) to trust beside the public web's.
    #[arg(long, value_name = "FILE")]
    extra_ca: Option<PathBuf>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The agent's folder, whose agent.toml gives what is not said here.
    #[arg(long)]
    dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MetricArg {
    Ttfb,
    Connect,
    Icmp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Measures, and prints.
pub(super) async fn run(args: ProbeArgs) -> anyhow::Result<()> {
    let context = context(&args)?;
    let target = if args.url.contains("://") { Target::url(&args.url) } else { Target::site(&args.url) }?;
    let metric = match args.metric {
        MetricArg::Ttfb => Metric::Ttfb,
        MetricArg::Connect => Metric::Connect,
        MetricArg::Icmp => Metric::Icmp,
    };
    let order = Order { metric, samples: args.count, interval: args.interval, timeout: args.timeout };
    let unread = CancellationToken::new();
    let mut number = 0;
    let text = args.format == Format::Text;
    let mut observe = |seen: Observation| {
        if matches!(seen, Observation::Sample(_) | Observation::Lost(_)) {
            number += 1;
        }
        if text && writeln!(std::io::stdout(), "{}", line(&seen, number)).is_err() {
            unread.cancel();
        }
    };
    let probed = tokio::select! {
        // Whoever read this has gone (`| head`), so no more requests are sent for it.
        () = unread.cancelled() => return Ok(()),
        probed = probe::measure(&context, &target, &order, &mut observe) => probed?,
    };
    let summary = weighted_mean(&probed.samples).context("sum up the samples")?;
    let printed = match args.format {
        Format::Text => summary_text(&probed, &summary),
        Format::Json => as_json(&args.url, &probed, &summary).to_string(),
    };
    match writeln!(std::io::stdout(), "{printed}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("print the result"),
        _ => Ok(()),
    }
}

fn context(args: &ProbeArgs) -> anyhow::Result<Context> {
    let file = config_file(args.dir.clone(), None);
    let config = if file.exists() { Some(Config::load(&file)?) } else { None };
    let config = config.as_ref();
    let contact = args.contact_url.as_deref().or(config.and_then(|config| config.contact_url.as_deref()));
    let Some(contact) = contact else {
        bail!("no request leaves without a contact URL: give --contact-url, or set contact_url in {}", file.display());
    };
    let mut allowed = args.allow_net.clone();
    allowed.extend(config.iter().flat_map(|config| config.allow_net.iter().copied()));
    let extra_ca = args.extra_ca.as_deref().or(config.and_then(|config| config.extra_ca.as_deref()));
    Ok(Context {
        guard: Guard::new(allowed),
        resolver: Resolver::new(args.dns.or(config.and_then(|config| config.dns)))?,
        user_agent: UserAgent::new(contact)?,
        bind: config.and_then(|config| config.bind),
        tls: tls_config(extra_ca)?,
    })
}

fn line(seen: &Observation, number: u32) -> String {
    match seen {
        Observation::Connected { origin, address, phases } => {
            format!("{origin} at {address}{}", phases_text(phases))
        }
        Observation::WarmUp(rtt) => format!("{:>5}  {:>10}  thrown away", "first", millis(*rtt)),
        Observation::Sample(rtt) => format!("{number:>5}  {:>10}", millis(*rtt)),
        Observation::Lost(why) => format!("{number:>5}  {:>10}  {why}", "lost"),
    }
}

fn phases_text(phases: &Phases) -> String {
    let named = [("dns", phases.dns), ("connect", phases.connect), ("tls", phases.tls)];
    let seen = named.iter().filter_map(|(name, took)| took.map(|took| format!("  {name} {}", millis(took))));
    seen.collect()
}

fn summary_text(probed: &Probed, summary: &Summary) -> String {
    let (address, count, lost) = (probed.address, probed.samples.len(), probed.lost);
    let mean = mean(&probed.samples).map(millis).unwrap_or_default();
    let [min, median, spread, rtt] = [summary.min, summary.median, summary.spread, summary.rtt].map(millis);
    format!(
        "\n{address}: {count} answered, {lost} lost\n\
         min {min}  median {median}  mean {mean}  spread {spread}\n\
         weighted mean {rtt}"
    )
}

fn as_json(url: &str, probed: &Probed, summary: &Summary) -> Value {
    let ms = |took: Duration| took.as_secs_f64() * 1e3;
    json!({
        "url": url,
        "origin": probed.origin.as_ref().map(ToString::to_string),
        "address": probed.address,
        "dns_ms": probed.phases.dns.map(ms),
        "connect_ms": probed.phases.connect.map(ms),
        "tls_ms": probed.phases.tls.map(ms),
        "samples_ms": probed.samples.iter().copied().map(ms).collect::<Vec<_>>(),
        "count": probed.samples.len(),
        "lost": probed.lost,
        "min_ms": ms(summary.min),
        "median_ms": ms(summary.median),
        "mean_ms": mean(&probed.samples).map(ms),
        "spread_ms": ms(summary.spread),
        "weighted_mean_ms": ms(summary.rtt),
    })
}

fn millis(took: Duration) -> String {
    format!("{:.2} ms", took.as_secs_f64() * 1e3)
}

/// Reads `250ms`, `1s` or `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        unit => return Err(format!("'{unit}' is not ms, s or m")),
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
