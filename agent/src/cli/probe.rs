//! `landfall-agent probe`: prints the durations of the connection's phases (DNS, connect, TLS),
//! then every sample as soon as it arrives, and at the end the statistical weighted mean.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::request::{RequestArgs, duration};
use crate::cli::exit::{Code, exit_error, usage};
use crate::probe::weighted_mean::{SampleSummary, mean, weighted_mean};
use crate::probe::{self, AddressLock, HostMeasurement, Metric, Observation, Phases, ProbeError, ProbeOrder, Target};

/// What to measure, and how.
#[derive(Debug, Args)]
pub(super) struct ProbeArgs {
    /// An http or https URL, or a bare host (https, then http).
    url: String,
    /// Number of samples; the first request of a connection is not a sample.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// After this many samples, stop as soon as the weighted mean is accurate to 2 % or 0.25 ms.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    least: Option<u32>,
    /// What to measure.
    #[arg(long, value_enum, default_value_t = Metric::Ttfb)]
    metric: Metric,
    /// Pause before every request.
    #[arg(long, default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// Time limit of one request.
    #[arg(long, default_value = "5s", value_parser = duration)]
    timeout: Duration,
    /// Format of the result.
    #[arg(short = 'o', long, value_enum, env = "LANDFALL_FORMAT", default_value_t = Format::Table)]
    format: Format,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    #[value(alias = "text")]
    Table,
    Json,
}

pub(super) async fn run(args: ProbeArgs) -> anyhow::Result<()> {
    let context = args.request.context()?;
    let target = if args.url.contains("://") { Target::url(&args.url) } else { Target::site(&args.url) };
    let target = target.map_err(|error| usage(error.to_string()))?;
    let order = ProbeOrder {
        metric: args.metric,
        samples: args.count,
        least_samples: args.least,
        share_max_age: None,
        interval: args.interval,
        timeout: args.timeout,
        lock: AddressLock::Anywhere,
    };
    let unread = CancellationToken::new();
    let mut number = 0;
    let text = args.format == Format::Table;
    let mut observe = |seen: Observation| {
        if matches!(seen, Observation::Sample(_) | Observation::Lost(_)) {
            number += 1;
        }
        if text && writeln!(std::io::stdout(), "{}", line(&seen, number)).is_err() {
            unread.cancel();
        }
    };
    let probed = tokio::select! {
        // The reader of standard output has closed the pipe, as `| head` does. Send no more
        // requests.
        () = unread.cancelled() => return Ok(()),
        probed = probe::measure(&context, &target, &order, &mut observe) => probed.map_err(failure)?,
    };
    let summary = weighted_mean(&probed.samples).context("sum up the samples")?;
    let printed = match args.format {
        Format::Table => summary_text(&probed, &summary),
        Format::Json => as_json(&args.url, &probed, &summary).to_string(),
    };
    match writeln!(std::io::stdout(), "{printed}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("print the result"),
        _ => Ok(()),
    }
}

/// Chooses the exit code of a failure: `SiteFailed`, unless the measurement order was invalid or
/// this machine does not permit the measurement.
fn failure(error: ProbeError) -> anyhow::Error {
    match error {
        ProbeError::BadOrder(_) | ProbeError::NotPermitted(_) => anyhow::Error::new(error),
        site => exit_error(Code::SiteFailed, site.to_string()),
    }
}

fn line(seen: &Observation, number: u32) -> String {
    match seen {
        Observation::Connected { origin, address, phases } => {
            format!("{origin} at {address}{}", phases_text(phases))
        }
        Observation::WarmUp(rtt) => format!("{:>5}  {:>10}  discarded", "first", millis(*rtt)),
        Observation::Sample(rtt) => format!("{number:>5}  {:>10}", millis(*rtt)),
        Observation::Lost(why) => format!("{number:>5}  {:>10}  {why}", "lost"),
    }
}

fn phases_text(phases: &Phases) -> String {
    let named = [("dns", phases.dns), ("connect", phases.connect), ("tls", phases.tls)];
    let seen = named.iter().filter_map(|(name, took)| took.map(|took| format!("  {name} {}", millis(took))));
    seen.collect()
}

fn summary_text(probed: &HostMeasurement, summary: &SampleSummary) -> String {
    let (address, count, lost) = (probed.address, probed.samples.len(), probed.lost);
    let mean = mean(&probed.samples).map(millis).unwrap_or_default();
    let [min, median, spread, rtt] = [summary.min, summary.median, summary.spread, summary.rtt].map(millis);
    format!(
        "\n{address}: {count} answered, {lost} lost\n\
         min {min}  median {median}  mean {mean}  spread {spread}\n\
         weighted mean {rtt}"
    )
}

fn as_json(url: &str, probed: &HostMeasurement, summary: &SampleSummary) -> Value {
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
