//! Computes a run's results from the database's record of the batch, compares measurements with the
//! scenario's true round trips, and formats results as tables. This module does no I/O.
//!
//! If the timing of a run is void, inaccurate measurements are accepted.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use landfall_scheduler::gnp::{Mesh, Refined, RefinedSwitches, SitePlace};
use landfall_scheduler::model::{AgentId, Rtt};

use super::batch_record::{BatchRecord, Measurement};
use crate::world::scenario::Scenario;

#[derive(Debug, Clone, Copy)]
pub struct Prediction {
    pub predicted_ms: f64,
    pub true_ms: f64,
}

impl Prediction {
    pub fn relative_error(&self) -> f64 {
        (self.predicted_ms - self.true_ms).abs() / self.true_ms
    }
}

#[derive(Debug, Clone)]
pub struct Figures {
    /// Mean true round trip between a site and the agent that crawled it; `None` if no site was
    /// crawled.
    pub crawler_ms: Option<f64>,
    /// Mean true round trip over all pairs of a site and an agent, which is the expected round trip
    /// if agents are chosen at random.
    pub random_ms: f64,
    /// Mean true round trip between a site and its nearest agent.
    pub nearest_ms: f64,
    /// Predictions for every pair of a located site and a placed agent that is not a landmark.
    pub predictions: Vec<Prediction>,
    /// Accuracy of the agents' measurements of each other.
    pub mesh: Accuracy,
    /// Accuracy of the landmarks' measurements of sites.
    pub sites: Accuracy,
    pub bytes: i64,
    /// Time from the start of the first crawl to the end of the last one.
    pub crawling: Duration,
}

impl Figures {
    /// `sites` contains the names as submitted, in the order of the scenario.
    pub fn of(record: &BatchRecord, scenario: &Scenario, sites: &[String]) -> Self {
        let agents: BTreeMap<&str, usize> =
            scenario.agents.iter().enumerate().map(|(index, agent)| (agent.name.as_str(), index)).collect();
        let sites: BTreeMap<&str, usize> =
            sites.iter().enumerate().map(|(index, site)| (site.as_str(), index)).collect();
        let path_ms = |agent: &str, site: &str| Some(scenario.paths[*agents.get(agent)?][*sites.get(site)?].rtt_ms);
        let mesh_ms = |from: &str, to: &str| Some(scenario.mesh[*agents.get(from)?][*agents.get(to)?].rtt_ms);
        let crawled = record.tasks.iter().filter_map(|task| path_ms(task.crawler.as_deref()?, &task.site));
        let column = |site: usize| scenario.paths.iter().map(move |row| row[site].rtt_ms);
        let all_sites = 0..scenario.sites.len();
        Self {
            crawler_ms: mean(crawled),
            random_ms: mean(all_sites.clone().flat_map(column)).unwrap_or(0.0),
            nearest_ms: mean(all_sites.map(|site| column(site).fold(f64::INFINITY, f64::min))).unwrap_or(0.0),
            predictions: predictions(record, &path_ms),
            mesh: accuracy(&record.mesh_measurements, &mesh_ms),
            sites: accuracy(&record.site_measurements, &path_ms),
            bytes: record.tasks.iter().map(|task| task.bytes).sum(),
            crawling: crawling(record),
        }
    }

    /// Sentences that describe what is wrong with the measurements; empty if `void` gives a reason
    /// why the timing is void. Fails, even if the timing is void, if the mesh or the sites have
    /// fewer than `fewest` measurements.
    pub fn untrue(&self, fewest: usize, void: Option<&str>) -> anyhow::Result<Vec<String>> {
        let mut violations = Vec::new();
        for (what, accuracy) in [("mesh", self.mesh), ("sites", self.sites)] {
            ensure!(accuracy.pairs >= fewest, "{what}: of at least {fewest} only {accuracy:?}");
            violations.extend(accuracy.violation(what, void));
        }
        Ok(violations)
    }

    /// `crawler_ms` divided by `random_ms`; `None` if no site was crawled.
    pub fn ratio(&self) -> Option<f64> {
        self.crawler_ms.map(|crawler| crawler / self.random_ms)
    }

    /// The `share` quantile of the predictions' relative errors; `None` if there are no
    /// predictions.
    pub fn relative_error(&self, share: f64) -> Option<f64> {
        let mut errors: Vec<f64> = self.predictions.iter().map(Prediction::relative_error).collect();
        errors.sort_by(f64::total_cmp);
        // `share` is at most 1, so `position` finds a rank unless `errors` is empty.
        let rank = errors.iter().enumerate().position(|(rank, _)| float(rank + 1) >= share * float(errors.len()));
        rank.and_then(|rank| errors.get(rank).copied())
    }

    pub fn megabytes_per_minute(&self) -> f64 {
        let bytes = f64::from(u32::try_from(self.bytes).unwrap_or(u32::MAX));
        let minutes = self.crawling.as_secs_f64() / 60.0;
        if minutes > 0.0 { bytes / 1e6 / minutes } else { 0.0 }
    }
}

/// The predictions of the refined map, with which the scheduler chose agents. The map is fitted
/// again to the recorded measurements. If the fit fails, the recorded placements give the
/// predictions.
fn predictions(record: &BatchRecord, path_ms: &dyn Fn(&str, &str) -> Option<f64>) -> Vec<Prediction> {
    let Some(map) = &record.embedding else { return Vec::new() };
    let names: Vec<&String> = map.agents.keys().collect();
    let id = |name: &str| Some(AgentId::new(i64::try_from(names.iter().position(|known| *known == name)?).ok()?));
    let refined = refined(record, &id);
    let mut measured: BTreeMap<&str, Vec<(AgentId, Rtt)>> = BTreeMap::new();
    for one in &record.site_measurements {
        let by = id(&one.prober).zip(one.rtt_us.and_then(|micros| Rtt::try_from_micros(micros).ok()));
        measured.entry(one.target.as_str()).or_default().extend(by);
    }
    let mut predictions = Vec::new();
    for (site, site_place) in &map.sites {
        let cloud = refined.as_ref().zip(measured.get(site.as_str()));
        let cloud = cloud.and_then(|(refined, measured)| refined.locate(measured).ok()).map(SitePlace::Cloud);
        for (agent, agent_place) in map.agents.iter().filter(|(name, _)| !record.landmarks.contains(name)) {
            let predicted = match &cloud {
                Some(cloud) => id(agent).and_then(|agent| cloud.predict(agent)).map(|predicted| predicted.rtt),
                None => map.embedding.predict(site_place, agent_place).ok(),
            };
            let predicted_ms = predicted.map(Rtt::as_millis_f64);
            let pair = predicted_ms.zip(path_ms(agent, site));
            predictions.extend(pair.map(|(predicted_ms, true_ms)| Prediction { predicted_ms, true_ms }));
        }
    }
    predictions
}

/// The refined map of the recorded mesh. The landmarks and the seed are those that the scheduler
/// used.
fn refined(record: &BatchRecord, id: &dyn Fn(&str) -> Option<AgentId>) -> Option<Refined> {
    let mut mesh = Mesh::new();
    for one in &record.mesh_measurements {
        if let (Some(from), Some(to), Some(micros)) = (id(&one.prober), id(&one.target), one.rtt_us) {
            mesh.insert(from, to, Rtt::try_from_micros(micros).ok()?);
        }
    }
    let landmarks: Vec<AgentId> = record.landmarks.iter().filter_map(|name| id(name)).collect();
    let seed = record.embedding.as_ref()?.embedding.epoch().get().unsigned_abs();
    Refined::new(&mesh, &landmarks, &RefinedSwitches::default(), seed).ok()
}

fn accuracy(measured: &[Measurement], true_ms: &dyn Fn(&str, &str) -> Option<f64>) -> Accuracy {
    Accuracy::of(measured.iter().map(|one| {
        let measured_ms = one.rtt_us.map(|micros| f64::from(u32::try_from(micros).unwrap_or(u32::MAX)) / 1e3);
        measured_ms.zip(true_ms(&one.prober, &one.target))
    }))
}

fn crawling(record: &BatchRecord) -> Duration {
    let begun = record.tasks.iter().filter_map(|task| task.started_at).min();
    let ended = record
        .tasks
        .iter()
        .filter_map(|task| Some(task.started_at? + chrono::Duration::milliseconds(task.duration_ms)))
        .max();
    match (begun, ended) {
        (Some(begun), Some(ended)) => (ended - begun).to_std().unwrap_or_default(),
        _ => Duration::ZERO,
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / float(count))
}

/// A measurement is right if its error is at most this fraction of the true round trip, or at most
/// [`RIGHT_MS`].
const RIGHT_SHARE: f64 = 0.05;
const RIGHT_MS: f64 = 2.0;
/// Maximum processing time to subtract from measurements, in milliseconds. The client, the emulated
/// network and the server need about 1 ms on a fast machine, and 2 ms in a debug build on a slow
/// machine.
const MAX_PROCESSING_MS: f64 = 2.0;
/// Minimum fraction of measurements that must be right.
pub const RIGHT_PAIRS: f64 = 0.95;
/// Maximum number of runs, at least one of which must have accurate measurements. If other
/// processes briefly occupy the processors, samples can be late by more than 2 ms, a delay that the
/// emulated network cannot detect. An error in Landfall would occur in every run.
const RUNS: usize = 3;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Accuracy {
    pub pairs: usize,
    /// Number of answered measurements that are right after [`Self::processing_ms`] is subtracted.
    pub right: usize,
    pub unanswered: usize,
    /// The processing time that every measurement includes, estimated as the median error and
    /// clamped to the range from 0 to 2 ms.
    pub processing_ms: f64,
}

impl Accuracy {
    /// Compares measurements with true round trips. An item is `None` if the measurement got no
    /// answer, or the scenario has no true round trip for it.
    pub fn of(measured_and_true_ms: impl IntoIterator<Item = Option<(f64, f64)>>) -> Self {
        let all: Vec<_> = measured_and_true_ms.into_iter().collect();
        let mut errors: Vec<(f64, f64)> =
            all.iter().flatten().map(|(measured_ms, true_ms)| (measured_ms - true_ms, *true_ms)).collect();
        errors.sort_by(|one, other| one.0.total_cmp(&other.0));
        let median = errors.get(errors.len() / 2).map_or(0.0, |(error, _)| *error);
        let processing_ms = median.clamp(0.0, MAX_PROCESSING_MS);
        let right =
            |(error, true_ms): &&(f64, f64)| (error - processing_ms).abs() <= (true_ms * RIGHT_SHARE).max(RIGHT_MS);
        let right = errors.iter().filter(right).count();
        Self { pairs: errors.len(), right, unanswered: all.len() - errors.len(), processing_ms }
    }

    /// The fraction of measurements that are right. Unanswered measurements count as wrong. `None`
    /// if there are no measurements.
    pub fn share(&self) -> Option<f64> {
        let all = self.pairs + self.unanswered;
        (all > 0).then(|| float(self.right) / float(all))
    }

    pub fn is_true(&self) -> bool {
        self.share().is_some_and(|share| share >= RIGHT_PAIRS)
    }

    /// Whether enough measurements are right. If the timing is void, measurements always pass.
    fn passes(&self, void: Option<&str>) -> bool {
        self.is_true() || void.is_some()
    }

    /// What is wrong with the measurements; `None` if they pass. If wrong measurements pass because
    /// the timing is void, the reason is printed.
    pub fn violation(&self, what: &str, void: Option<&str>) -> Option<String> {
        println!("{what}: {self:?}");
        if let (false, Some(reason)) = (self.is_true(), void) {
            println!("void: {reason}");
        }
        (!self.passes(void)).then(|| format!("{what}: {self:?}"))
    }
}

/// Repeats a run until its measurements are accurate, or `RUNS` runs have failed. A run returns
/// what is wrong with its measurements.
pub async fn in_one_run(mut run: impl AsyncFnMut() -> Vec<String>) -> Result<(), String> {
    let mut violations = Vec::new();
    for _ in 0..RUNS {
        let said = run().await;
        if said.is_empty() {
            return Ok(());
        }
        violations.push(said);
    }
    Err(format!("in each of {RUNS} runs: {violations:?}"))
}

/// Formats a header and rows as lines of text. Each column is as wide as its widest cell.
pub fn text_table<H: AsRef<str>>(header: &[H], rows: &[Vec<String>]) -> String {
    let header: Vec<&str> = header.iter().map(AsRef::as_ref).collect();
    let width = |(column, name): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.fold(name.chars().count(), usize::max)
    };
    let widths: Vec<usize> = header.iter().enumerate().map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut text = line(&mut header.iter().copied()) + &line(&mut rules.iter().map(String::as_str));
    text.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    text
}

/// Converts a count to a float. Counts in the lab are below 2^32, so the conversion is exact.
pub fn float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Figures with a median relative error of 0.1.
    pub(crate) fn figures() -> Figures {
        let prediction = |predicted_ms| Prediction { predicted_ms, true_ms: 100.0 };
        Figures {
            crawler_ms: Some(40.0),
            random_ms: 100.0,
            nearest_ms: 30.0,
            predictions: [90.0, 150.0, 100.0, 130.0].map(prediction).to_vec(),
            mesh: Accuracy::default(),
            sites: Accuracy::default(),
            bytes: 30_000_000,
            crawling: Duration::from_secs(30),
        }
    }

    fn measured(rtt_us: Option<i64>) -> Measurement {
        Measurement { prober: "a".to_owned(), target: "b".to_owned(), rtt_us }
    }

    #[test]
    fn measurements_are_compared_with_the_scenario() {
        let all = [9_900, 10_000, 12_100].map(Some).into_iter().chain([None]).map(measured).collect::<Vec<_>>();
        let counted = accuracy(&all, &|_, _| Some(10.0));
        assert_eq!(counted, Accuracy { pairs: 3, right: 2, unanswered: 1, processing_ms: 0.0 });
        assert_eq!(accuracy(&all, &|_, _| None).unanswered, 4, "a pair that the scenario does not know");
    }

    #[test]
    fn relative_errors_have_quantiles() {
        let figures = figures();
        assert_eq!(figures.relative_error(0.5), Some(0.1));
        assert_eq!(figures.relative_error(1.0), Some(0.5));
        assert!((figures.megabytes_per_minute() - 60.0).abs() < 1e-9);
    }

    #[test]
    fn a_measurement_is_right_within_five_percent_or_two_milliseconds() {
        let none = Accuracy::default();
        assert_eq!((none.share(), none.is_true()), (None, false));
        let right = [(12.0, 10.0), (8.0, 10.0), (10.0, 10.0), (105.0, 100.0)];
        let wrong = [(7.9, 10.0), (94.9, 100.0)];
        let accuracy = Accuracy::of(right.into_iter().chain(wrong).map(Some).chain([None]));
        assert_eq!(accuracy, Accuracy { pairs: 6, right: 4, unanswered: 1, processing_ms: 0.0 });
        assert!((accuracy.share().unwrap() - 4.0 / 7.0).abs() < 1e-9);
        assert!(accuracy.violation("sites", None).unwrap().starts_with("sites: "));
        assert!(accuracy.passes(Some("the machine was busy")));
        assert!(Accuracy { pairs: 20, right: 19, ..none }.is_true());
        assert!(!Accuracy { pairs: 96, right: 91, ..none }.is_true());
    }

    #[test]
    fn the_same_delay_in_all_measurements_is_the_machines_up_to_a_limit() {
        let paths = [4.0, 12.0, 24.0, 36.0, 48.0];
        let late = |delay_ms: f64| Accuracy::of(paths.map(|path| Some((path + delay_ms, path))));
        assert_eq!((late(1.9).right, late(3.9).right, late(4.1).right), (5, 5, 1));
        assert_eq!((late(-1.9).right, late(-2.1).right), (5, 1), "no machine makes samples too short");
        let longer = Accuracy::of(paths.map(|path| Some((path * 1.25, path))));
        assert!(!longer.is_true(), "an error that grows with the path is Landfall's: {longer:?}");
    }

    #[tokio::test]
    async fn one_accurate_run_is_enough_and_repeated_errors_are_reported() {
        let mut answers = vec![vec![], vec!["late".to_owned()]];
        in_one_run(async || answers.pop().unwrap()).await.unwrap();
        let mut runs = 0;
        let always = async || {
            runs += 1;
            vec![format!("wrong {runs}")]
        };
        let said = in_one_run(always).await.unwrap_err();
        assert!(said.contains("wrong 1") && said.contains("wrong 3") && !said.contains("wrong 4"), "{said}");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["random".to_owned(), "1".to_owned()], vec!["é".to_owned(), "23.45".to_owned()]];
        assert_eq!(text_table(&["name", "ms"], &rows), "name    ms\n------  -----\nrandom  1\né       23.45\n");
        assert_eq!(text_table(&["name", "ms"], &[]), "name  ms\n----  --\n");
    }
}
