//! Tests whole simulations: on synthetic matrices, and on measured matrices if their files exist.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::gnp::{PlainSwitches, Tier};
use crate::model::Strategy;

/// Nodes in a square with sides of 200 ms, each with an access delay of some milliseconds. `hole`
/// returns `true` for a pair that was not measured.
fn plane(nodes: usize, hole: impl Fn(usize, usize) -> bool) -> Matrix {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let places: Vec<(f64, f64, f64)> = (0..nodes)
        .map(|_| (rng.random_range(0.0..200.0), rng.random_range(0.0..200.0), rng.random_range(1.0..6.0)))
        .collect();
    Matrix::of(nodes, |i, j| {
        let ((x, y, a), (u, v, b)) = (places[i], places[j]);
        (!hole(i, j)).then(|| (x - u).hypot(y - v) + a + b)
    })
}

fn small() -> Settings {
    Settings {
        agents: 12,
        landmarks: 5,
        dims: Some(2),
        seeds: 3,
        tier: Tier::Plain,
        election: Election::KMedoids,
        ..Settings::default()
    }
}

fn nothing_watched() {}

fn judged(matrix: &Matrix, settings: &Settings) -> Vec<SeedResult> {
    judge(matrix, settings, &nothing_watched).unwrap()
}

#[derive(Debug)]
struct DumpRow {
    landmark: bool,
    measured: f64,
    predicted: Option<f64>,
    rank: Option<usize>,
}

/// Writes a dump and reads it back. Returns the rows, grouped by seed and site.
fn dumped(judged: &[SeedResult]) -> BTreeMap<(u64, usize), Vec<DumpRow>> {
    let mut text = Vec::new();
    dump(judged, &mut text).unwrap();
    let mut rows = csv::Reader::from_reader(text.as_slice());
    let header = ["seed", "site", "agent", "is_landmark", "measured_ms", "predicted_ms", "rank"];
    assert_eq!(rows.headers().unwrap(), &header[..]);
    let mut sites: BTreeMap<(u64, usize), Vec<DumpRow>> = BTreeMap::new();
    for row in rows.records() {
        let row = row.unwrap();
        assert_ne!(row[1], row[2], "a site is no agent");
        sites.entry((row[0].parse().unwrap(), row[1].parse().unwrap())).or_default().push(DumpRow {
            landmark: &row[3] == "1",
            measured: row[4].parse().unwrap(),
            predicted: row[5].parse().ok(),
            rank: row[6].parse().ok(),
        });
    }
    sites
}

fn assert_recomputed(report: &Report, sites: &BTreeMap<(u64, usize), Vec<DumpRow>>) {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / f64::from(u32::try_from(values.len()).unwrap());
    let mut errors: Vec<f64> = sites
        .values()
        .flatten()
        .filter(|row| !row.landmark)
        .filter_map(|row| Some((row.predicted? - row.measured).abs() / row.measured))
        .collect();
    errors.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        let place = (errors.len() - 1) * percent;
        let part = f64::from(u32::try_from(place % 100).unwrap()) / 100.0;
        let above = errors[(place / 100 + 1).min(errors.len() - 1)];
        errors[place / 100] * (1.0 - part) + above * part
    };
    let accuracy = |percent: usize| 1.0 - mean(&errors[..errors.len() * percent / 100]);
    let best = |site: &[DumpRow], within: usize| {
        let ranked = site.iter().filter(|row| row.rank.is_some_and(|rank| rank <= within));
        ranked.map(|row| row.measured).fold(f64::INFINITY, f64::min)
    };
    let hits = |within: usize| {
        let hit = |site: &Vec<DumpRow>| f64::from(u8::from(best(site, within) <= best_of_all(site)));
        mean(&sites.values().map(hit).collect::<Vec<f64>>())
    };
    let top1 = mean(&sites.values().map(|site| best(site, 1)).collect::<Vec<f64>>());
    let oracle = mean(&sites.values().map(|site| best_of_all(site)).collect::<Vec<f64>>());
    let measured = |site: &Vec<DumpRow>| mean(&site.iter().map(|row| row.measured).collect::<Vec<f64>>());
    let random = mean(&sites.values().map(measured).collect::<Vec<f64>>());
    let score = report.strategies.iter().find(|score| score.name == Strategy::GNP_TOP1.to_string()).unwrap();
    let estimate = &report.estimate;
    for (name, reported, recomputed) in [
        ("re50", estimate.re50, at(50)),
        ("re90", estimate.re90, at(90)),
        ("acc70", estimate.acc70, accuracy(70)),
        ("acc80", estimate.acc80, accuracy(80)),
        ("top1_hit", estimate.top1_hit, hits(1)),
        ("top3_hit", estimate.top3_hit, hits(3)),
        ("oracle", report.oracle_rtt_ms, oracle),
        ("random", report.random_rtt_ms, random),
        ("gnp-top1", score.mean_rtt_ms, top1),
        ("stretch", score.stretch, top1 / oracle),
    ] {
        assert!((reported.unwrap() - recomputed).abs() < 1e-9, "{name}: {reported:?}, from the dump {recomputed}");
    }
}

fn best_of_all(site: &[DumpRow]) -> f64 {
    site.iter().map(|row| row.measured).fold(f64::INFINITY, f64::min)
}

#[test]
fn every_figure_can_be_recomputed_from_the_dump() {
    let matrix = plane(40, |_, _| false);
    for &tier in Tier::ALL {
        // Only one seed, because fitting the refined map is slow in a debug build.
        let seeds = if tier == Tier::Refined { 1 } else { 3 };
        let settings = Settings { tier, seeds, ..small() };
        let judged = judged(&matrix, &settings);
        let report = Report::of(40, &settings, &judged);
        let sites = dumped(&judged);
        assert_eq!(sites.len(), 28 * usize::try_from(seeds).unwrap());
        assert!(sites.values().all(|site| site.len() == 12));
        assert_recomputed(&report, &sites);
        let most = if tier == Tier::Gnp { 0.2 } else { 0.1 };
        assert!(report.estimate.re50.unwrap() < most, "{report:?}");
        assert_eq!((report.pairs, report.sites_without_estimate), (sites.len() * 7, 0));
    }
}

#[test]
fn a_matrix_with_holes_is_judged_where_it_can_be_and_says_where_it_cannot() {
    // No node measured node 0, few nodes measured nodes 1 to 9, and some other pairs
    // are unmeasured.
    let hole = |i: usize, j: usize| {
        i == 0 || j == 0 || (i.min(j) < 10 && (i + j) % 7 < 5) || (i * 31 + j * 17).is_multiple_of(11)
    };
    let matrix = plane(40, hole);
    judge_with_holes(&matrix, &Settings { seeds: 4, ..small() });
    judge_with_holes(&matrix, &Settings { first_seed: 1, seeds: 1, tier: Tier::Refined, ..small() });
}

fn judge_with_holes(matrix: &Matrix, settings: &Settings) {
    let judged = judged(matrix, settings);
    let report = Report::of(40, settings, &judged);
    assert!(report.sites_without_estimate > 0 && report.sites_unknown > 0, "{report:?}");
    assert!(report.estimate.re50.unwrap() < 0.3, "{report:?}");
    let mut fell_back = 0;
    for site in judged.iter().flat_map(|seed| &seed.sites).filter(|site| !site.agents.is_empty()) {
        let first: Vec<&JudgedAgent> = site.agents.iter().filter(|agent| agent.rank == Some(1)).collect();
        assert_eq!(first.len(), 1);
        if !site.located && site.measurements > 0 {
            // If the site is not located, the agent with the shortest measurement ranks first.
            let nearest = site.agents.iter().filter(|agent| agent.landmark).map(|agent| agent.truth);
            assert_eq!(nearest.min_by(f64::total_cmp), Some(first[0].truth));
            fell_back += 1;
        }
    }
    assert!(fell_back > 0);
    assert_recomputed(&report, &dumped(&judged));
    assert!(!serde_json::to_string(&report).unwrap().contains("null"));
}

#[test]
fn a_matrix_of_islands_has_no_map_and_measured_distances_decide() {
    let matrix = plane(30, |i, j| i % 2 != j % 2);
    let settings = Settings { agents: 16, landmarks: 14, election: Election::Random, ..small() };
    let report = run(&matrix, &settings, &nothing_watched).unwrap();
    assert_eq!(report.seeds_without_map, 3);
    assert_eq!((report.pairs, report.estimate.re50), (0, None));
    assert!(report.strategies.iter().all(|score| score.mean_rtt_ms.is_some()));
}

#[test]
fn a_fleet_whose_every_agent_is_a_landmark_predicts_nothing_and_measures_all() {
    let settings = Settings { agents: 5, landmarks: 5, seeds: 1, tier: Tier::Plain, ..Settings::default() };
    let report = run(&plane(20, |_, _| false), &settings, &nothing_watched).unwrap();
    assert_eq!(report.estimate.re50, None);
    assert_eq!(report.estimate.top1_hit, Some(1.0));
    assert_eq!(score_of(&report, Strategy::GNP_TOP1).stretch, Some(1.0));
}

#[test]
fn more_landmarks_than_agents_that_others_reach_are_refused_with_the_lowest_seed() {
    let bare = Matrix::of(40, |_, j| j.is_multiple_of(8).then_some(20.0));
    let error = judge(&bare, &Settings { landmarks: 9, dims: None, ..small() }, &nothing_watched).unwrap_err();
    let sentence = crate::app::exit::sentence(&anyhow::Error::new(error));
    assert!(sentence.starts_with("seed 0: elect the landmarks: an election of 9 landmarks needs as many agents that two others reached, but only "), "{sentence}");
}

#[test]
fn the_report_depends_on_neither_threads_nor_company() {
    let matrix = plane(40, |i, j| (i + 3 * j).is_multiple_of(13));
    let settings = Settings { sites: Some(10), ..small() };
    let alone = judged(&matrix, &settings);
    let threads = NonZeroUsize::new(3).unwrap();
    assert_eq!(alone, judged(&matrix, &Settings { threads, ..settings.clone() }));
    let last = Settings { first_seed: 2, seeds: 1, ..settings.clone() };
    assert_eq!(alone[2..], judged(&matrix, &last));
    assert!(alone.iter().all(|seed| seed.sites.len() == 10));
    let only = Settings { strategies: vec![Strategy::GnpConfirmed], ..settings.clone() };
    let only = Report::of(40, &only, &judged(&matrix, &only));
    assert_eq!(only.strategies[0], *score_of(&Report::of(40, &settings, &alone), Strategy::GnpConfirmed));
}

#[test]
fn strategies_rank_as_they_should_and_their_probes_are_counted() {
    let strategies = vec![Strategy::Random, Strategy::GNP_TOP1, Strategy::GNP_TOP3, Strategy::GnpConfirmed];
    let settings = Settings { seeds: 4, strategies, ..small() };
    let report = run(&plane(60, |_, _| false), &settings, &nothing_watched).unwrap();
    let [random, top1, top3, confirmed] = &report.strategies[..] else { panic!("{report:?}") };
    assert_eq!(random.mean_rtt_ms, report.random_rtt_ms);
    let mean = |score: &ContenderScore| score.mean_rtt_ms.unwrap();
    assert!(report.oracle_rtt_ms.unwrap() <= mean(confirmed), "{report:?}");
    assert!(mean(confirmed) <= mean(top1) && mean(top1) < mean(top3) && mean(top3) < mean(random), "{report:?}");
    let probes: Vec<f64> = report.strategies.iter().map(|score| score.probes_per_site.unwrap()).collect();
    assert_eq!(probes, [0.0, 5.0, 5.0, 8.0]);
    assert!(random.load_cv < top3.load_cv && top3.load_cv < top1.load_cv, "{report:?}");
}

#[test]
fn an_ingredient_left_out_changes_the_map() {
    let matrix = plane(30, |_, _| false);
    let whole = Settings { seeds: 1, sites: Some(5), tier: Tier::Refined, ..small() };
    let less = Settings { without: vec!["height"], ..whole.clone() };
    assert_ne!(judged(&matrix, &whole), judged(&matrix, &less));
    let plain = Settings { tier: Tier::Plain, ..whole };
    let (all, mut seen) = (judged(&matrix, &plain), Vec::new());
    for &name in PlainSwitches::NAMES {
        let less = judged(&matrix, &Settings { without: vec![name], ..plain.clone() });
        assert!(less != all && !seen.contains(&less), "{name}");
        seen.push(less);
    }
    let none = Settings { without: PlainSwitches::NAMES.to_vec(), ..plain.clone() };
    let published = Settings { tier: Tier::Gnp, ..plain };
    assert_eq!(judged(&matrix, &none), judged(&matrix, &published));
}

#[test]
fn names_alone_are_as_far_as_random_and_what_stands_in_no_matrix_is_refused() {
    let matrix = plane(60, |_, _| false);
    let report = run(&matrix, &Settings { seeds: 4, ..small() }, &nothing_watched).unwrap();
    let mean = |strategy| score_of(&report, strategy).mean_rtt_ms.unwrap();
    for strategy in [Strategy::Hash, Strategy::Kademlia] {
        assert!((0.7..1.3).contains(&(mean(strategy) / mean(Strategy::Random))), "{report:?}");
    }
    for strategy in [Strategy::GnpBalanced, Strategy::EarliestFinish] {
        assert!(mean(strategy) < 0.7 * mean(Strategy::Random), "{report:?}");
    }
    let elsewhere = [(Strategy::Domain, "names"), (Strategy::Geographic, "positions"), (Strategy::Prefix, "addresses")];
    for (strategy, lacks) in elsewhere {
        let settings = Settings { strategies: vec![strategy], ..small() };
        let refused = settings.check(&matrix).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("strategy {strategy}: it needs {lacks}, ")), "{refused}");
    }
    let left: Vec<(Strategy, Option<&str>)> = report.left_out.iter().map(|left| (left.name, left.lacks)).collect();
    assert_eq!(left, elsewhere.map(|(strategy, lacks)| (strategy, Some(lacks))));
}

/// Nodes on a line around the globe, in two countries. Every tenth node has no data.
fn told(nodes: usize) -> Vec<Node> {
    let node = |index: usize| {
        let part = f64::from(u32::try_from(index).unwrap()) / f64::from(u32::try_from(nodes).unwrap());
        Node {
            name: Some(format!("n{index}.{}", if index.is_multiple_of(2) { "cn" } else { "jp" })),
            position: crate::model::geo::Position::try_new(0.0, 340.0 * part - 170.0).ok(),
            country: Some(if index.is_multiple_of(2) { *b"CN" } else { *b"JP" }),
            address: format!("10.{}.0.1", index % 200).parse().ok(),
        }
    };
    (0..nodes).map(|index| if index % 10 == 9 { Node::default() } else { node(index) }).collect()
}

#[test]
fn nodes_that_are_told_of_have_every_strategy_judged() {
    let nodes = 60;
    let line = |i: usize, j: usize| Some(1.0 + f64::from(u32::try_from(i.abs_diff(j)).unwrap()));
    let matrix = Matrix::of(nodes, line);
    let nodes = told(nodes);
    let settings = Settings { strategies: super::judged(&nodes).collect(), nodes, ..small() };
    let report = run(&matrix, &settings, &nothing_watched).unwrap();
    assert_eq!((report.strategies.len(), report.left_out.len()), (Strategy::ALL.len(), 0));
    let geographic = score_of(&report, Strategy::Geographic);
    // In this matrix, an agent that is near a site on the globe is also near it in the network.
    // Nine of ten sites have a position.
    assert!(geographic.fallbacks > 0 && geographic.fallbacks < report.sites / 4, "{geographic:?}");
    let mean = |strategy| score_of(&report, strategy).mean_rtt_ms.unwrap();
    assert!(mean(Strategy::Geographic) < 0.5 * mean(Strategy::Random), "{report:?}");
    let fewer = Settings { nodes: told(59), ..settings };
    assert_eq!(fewer.check(&matrix).unwrap_err().to_string(), "nodes: the file describes 59, but the matrix has 60");
}

/// Checks that the page consists of elements that are closed in the right order.
fn assert_well_formed(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page;
    while let Some((_, tag)) = rest.split_once('<') {
        let (tag, after) = tag.split_once('>').expect("a tag ends");
        rest = after;
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        match tag.starts_with('/') {
            true => assert_eq!(open.pop(), Some(name), "{tag}"),
            false if tag.starts_with("!DOCTYPE") || name == "meta" => {}
            false => open.push(name),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn the_page_holds_every_strategy_and_escapes_names() {
    let matrix = plane(40, |_, _| false);
    let alone = Settings { seeds: 2, crawls: 3, ..small() };
    let nodes = told(40);
    let every = Settings { strategies: super::judged(&nodes).collect(), nodes, crawls: 1, ..alone.clone() };
    for (settings, plots, lacking) in [(alone, 4, 3), (every, 3, 0)] {
        let judged = judged(&matrix, &settings);
        let report = &Report::of(matrix.nodes(), &settings, &judged);
        let distributions = &Distributions::of(&settings, &judged);
        let nodes = Some("<nodes> & \"more\".csv");
        let text = page(&Page { matrix: "<b>.csv", nodes, settings: &settings, report, distributions });
        assert_well_formed(&text);
        assert!(Strategy::ALL.iter().all(|strategy| text.contains(&format!("<td>{strategy}</td>"))));
        assert_eq!(text.matches("left out: it needs").count(), lacking);
        assert_eq!(text.matches("role=\"img\"").count(), plots);
        assert!(text.contains("&lt;b&gt;.csv") && text.contains("&lt;nodes&gt; &amp;"), "{text}");
        for wrong in ["<b>", "NaN", "inf ", "<script", "http:", "https:", "url("] {
            assert!(!text.contains(wrong), "{wrong}");
        }
        for unit in ["round trip, ms", "sites, %", "excess, ms", "relative error, %", "pairs, %"] {
            assert!(text.contains(unit), "{unit}");
        }
    }
}

fn score_of(report: &Report, strategy: Strategy) -> &ContenderScore {
    report.strategies.iter().find(|score| score.name == strategy.to_string()).unwrap()
}

/// Reads a measured matrix. If the file does not exist, prints a line and returns `None`.
fn measured(name: &str) -> Option<Matrix> {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data")).join(name);
    if !file.exists() {
        println!("skipped: the measured matrix {name} is not there");
        return None;
    }
    Some(Matrix::read(&file).unwrap())
}

#[test]
fn on_planetlab_the_map_predicts_and_three_nearest_beat_random() {
    let Some(matrix) = measured("planetlab490.matrix.csv.gz") else { return };
    let settings =
        Settings { seeds: 1, sites: Some(60), tier: Tier::Plain, election: Election::KMedoids, ..Settings::default() };
    let report = run(&matrix, &settings, &nothing_watched).unwrap();
    assert!(report.estimate.re50.unwrap() < 0.15, "{report:?}");
    assert!(
        score_of(&report, Strategy::GNP_TOP3).mean_rtt_ms.unwrap() <= 0.40 * report.random_rtt_ms.unwrap(),
        "{report:?}"
    );
}
