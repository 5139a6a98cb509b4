//! Decides whether the timing of a run is void. The timing is void if the emulated network was late
//! or dropped packets for lack of room, or if the machine was too busy.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::emulated_network::World;
use super::scenario::Scenario;
use crate::machine::CpuTime;

/// Lateness of the emulated network up to this limit never makes a run void.
const MAX_LATENESS: Duration = Duration::from_millis(3);
/// Minimum fraction of processor time that must be idle for reliable times.
pub const LEAST_IDLE: f64 = 0.20;

impl World {
    /// Why the timing of a run is void; `None` if it is valid. The timing is void if the 99th
    /// percentile of the lateness exceeds both 3 ms and 5 % of the median round trip, or if the lab
    /// had to drop packets.
    pub fn too_late(&self) -> Option<String> {
        let late = self.lateness().quantile(0.99);
        let allowed = MAX_LATENESS.max(median_rtt(self.scenario()).mul_f64(0.05));
        if late > allowed {
            return Some(format!("the emulated network was late: p99 {late:.1?}, allowed {allowed:.1?}"));
        }
        let overrun = self.network.as_ref().map_or(0, |network| network.traffic().overrun.load(Ordering::Relaxed));
        (overrun > 0).then(|| format!("the lab had no room for {overrun} packets"))
    }

    /// Why the timing since the start of the network is void; `None` if it is valid. The timing is
    /// void if [`Self::too_late`] gives a reason, or if the machine was less idle than
    /// [`LEAST_IDLE`].
    pub fn void(&self) -> Option<String> {
        let idle = || CpuTime::now().zip(self.began).map(|(now, began)| now.idle_since(began));
        self.too_late().or_else(|| idle().and_then(too_busy))
    }
}

/// The median round trip over all links of a scenario.
fn median_rtt(scenario: &Scenario) -> Duration {
    let others =
        scenario.mesh.iter().enumerate().flat_map(|(from, row)| {
            row.iter().enumerate().filter(move |(to, _)| *to != from).map(|(_, link)| link.rtt_ms)
        });
    let mut all: Vec<f64> = others.chain(scenario.paths.iter().flatten().map(|link| link.rtt_ms)).collect();
    all.sort_by(f64::total_cmp);
    Duration::from_secs_f64(all.get(all.len() / 2).copied().unwrap_or(0.0) / 1e3)
}

/// Why times are unreliable if only the fraction `idle` of processor time was idle; `None` if the
/// times are reliable.
pub fn too_busy(idle: f64) -> Option<String> {
    let percent = |share: f64| share * 100.0;
    let reason =
        || format!("the machine was only {:.0} % idle; {:.0} % are needed", percent(idle), percent(LEAST_IDLE));
    (idle < LEAST_IDLE).then(reason)
}
