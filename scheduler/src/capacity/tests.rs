//! Tests predictions for fleets, by worked examples and by properties.

use std::num::NonZeroUsize;
use std::time::Duration;

use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::model::{EmbeddingEpoch, SiteId, Strategy};
use crate::strategy::{Speed, Work};

const EPOCH: EmbeddingEpoch = EmbeddingEpoch::new(4);
const TWO: NonZeroUsize = NonZeroUsize::new(2).unwrap();

fn agent(name: &str, coordinate: &[f64], change: AgentChange) -> Agent {
    Agent {
        name: name.into(),
        city: "Harbin".into(),
        carrier: "CERNET".into(),
        coordinate: coordinate.to_vec(),
        slots: 2,
        speed: Speed::default(),
        change,
    }
}

fn sites(coordinates: &[Vec<f64>]) -> Sites {
    let mut sites = Sites::new(EPOCH, coordinates[0].len() - 1);
    for (id, coordinate) in (1..).zip(coordinates) {
        sites.push(SiteId::new(id), coordinate, Some((10, 10_000)), Some(Duration::ZERO)).unwrap();
    }
    sites
}

/// Sites and agents near six cities, in two dimensions.
fn network(sites_count: usize, agents: usize, seed: u64) -> (Sites, Vec<Agent>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let cities: Vec<[f64; 2]> = (0..6).map(|_| [rng.random_range(0.0..200.0), rng.random_range(0.0..200.0)]).collect();
    let mut drawn = |reach: f64| {
        let city = cities[rng.random_range(0..cities.len())];
        let mut at = |middle: f64| middle + rng.random_range(-reach..reach);
        vec![at(city[0]), at(city[1]), at(reach).abs()]
    };
    let coordinates: Vec<Vec<f64>> = (0..sites_count).map(|_| drawn(10.0)).collect();
    let agents = (0..agents).map(|number| agent(&format!("a{number}"), &drawn(3.0), AgentChange::Stays)).collect();
    (sites(&coordinates), agents)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-3 * a.abs().max(b.abs()).max(1e-3)
}

#[test]
fn a_tiny_network_comes_to_what_is_worked_out_by_hand() {
    let sites = sites(&[vec![10.0, 2.0], vec![90.0, 2.0]]);
    let agents = [
        agent("west", &[0.0, 1.0], AgentChange::Stays),
        agent("east", &[100.0, 1.0], AgentChange::Leaves),
        agent("new", &[90.0, 1.0], AgentChange::Comes),
    ];
    let top1 = compare(&sites, &agents, SiteSplit::Nearest(1), TWO).unwrap();
    // Each site is 13 ms from its agent: the distance 10, the site's height 2 and the agent's
    // height 1. After the change, the second site is 3 ms from the new agent.
    assert!(close(top1.before.mean_ms, 13.0) && close(top1.after.mean_ms, 8.0), "{top1:?}");
    let load = |outlook: &FleetPrediction, place: usize| outlook.loads[place].unwrap();
    // A crawl takes 13 round trips: three before the first page, and one for each of ten pages.
    // The agent has two slots.
    let west = load(&top1.before, 0);
    assert!(close(west.sites, 1.0) && close(west.share, 0.5), "{west:?}");
    assert!(close(west.work.as_secs_f64(), 0.169) && close(west.busy.as_secs_f64(), 0.0845), "{west:?}");
    assert!(top1.before.loads[2].is_none() && top1.after.loads[1].is_none());
    assert!(close(load(&top1.after, 2).work.as_secs_f64(), 0.039));
    assert!(close(top1.after.makespan.as_secs_f64(), 0.0845));

    // Two agents share each site, because there is no third agent.
    let top3 = compare(&sites, &agents, SiteSplit::Nearest(3), TWO).unwrap();
    assert!(close(top3.before.mean_ms, 53.0), "{top3:?}");
    // After the change, the two agents are 13 and 83 ms from the first site, and 93 and 3 ms from
    // the second.
    assert!(close(top3.after.mean_ms, 48.0), "{top3:?}");
    let all = compare(&sites, &agents, SiteSplit::All, TWO).unwrap();
    assert!(close(all.before.mean_ms, 53.0) && close(load(&all.before, 1).sites, 1.0), "{all:?}");
}

#[test]
fn sites_of_unknown_size_count_as_the_mean_of_the_others() {
    let mut sites = sites(&[vec![10.0, 2.0]]);
    assert_eq!((sites.known(), sites.usual()), (1, (10, 10_000)));
    sites.push(SiteId::new(2), &[1.0, 1.0], Some((30, 50_000)), None).unwrap();
    sites.push(SiteId::new(3), &[1.0, 1.0], None, None).unwrap();
    assert_eq!((sites.known(), sites.usual()), (2, (20, 30_000)));
    assert_eq!(sites.work(2, sites.usual()), Work { pages: 20, bytes: 30_000, interval: Duration::from_secs(1) });
    assert_eq!(Sites::new(EPOCH, 2).usual(), (20, 400_000));
    for broken in [&[1.0][..], &[1.0, f64::NAN], &[1.0, -1.0], &[1.0, 2.0, 3.0]] {
        assert_eq!(sites.push(SiteId::new(4), broken, None, None), Err(CapacityError::Coordinate(1)));
    }
}

#[test]
fn an_agent_beside_a_cluster_lowers_the_mean_and_suggestions_find_it() {
    let mut coordinates: Vec<Vec<f64>> = (0..300).map(|number| vec![f64::from(number % 20), 5.0]).collect();
    coordinates.extend((0..100).map(|number| vec![500.0 + f64::from(number % 5), 5.0]));
    let sites = sites(&coordinates);
    let mut agents: Vec<Agent> =
        (0..3).map(|number| agent("a", &[f64::from(number * 5), 1.0], AgentChange::Stays)).collect();
    let split = SiteSplit::Nearest(3);
    let suggested = suggest(&sites, &agents, split, 4, 7, TWO).unwrap();
    assert!(suggested.picks.len() >= 3, "{suggested:?}");
    // The cluster near 500 ms has no agent. The first three picks are in this cluster, and each
    // gets a third of the cluster's sites.
    for pick in &suggested.picks[..3] {
        assert!(pick.site >= 300 && close(pick.share, 0.25 / 3.0), "{suggested:?}");
    }
    assert_eq!(suggested, suggest(&sites, &agents, split, 4, 7, NonZeroUsize::MIN).unwrap());
    let before = compare(&sites, &agents, split, TWO).unwrap().after.mean_ms;
    let mut mean_ms = before;
    for pick in suggested.picks {
        let coordinate = beside(sites.coordinate(pick.site), &agents);
        assert_eq!(coordinate.last(), Some(&1.0), "as high as agents are");
        agents.push(agent("new", &coordinate, AgentChange::Comes));
        // The prediction for a pick must equal the result of adding an agent at the pick.
        let compared = compare(&sites, &agents, split, TWO).unwrap();
        assert!(close(compared.before.mean_ms, before) && close(compared.after.mean_ms, pick.mean_ms), "{pick:?}");
        assert!(close(mean_ms - pick.mean_ms, pick.gain_ms) && pick.gain_ms > 0.0, "{pick:?}");
        mean_ms = pick.mean_ms;
    }
}

#[test]
fn where_nobody_helps_nothing_is_suggested() {
    let sites = sites(&[vec![1.0, 1.0], vec![1.0, 1.0]]);
    let agents = [agent("a", &[1.0, 1.0], AgentChange::Stays)];
    assert_eq!(suggest(&sites, &agents, SiteSplit::Nearest(1), 3, 1, TWO).unwrap().picks, []);
}

#[test]
fn questions_without_an_answer_are_refused_with_a_sentence() {
    let (sites, mut agents) = network(10, 2, 1);
    let none = Sites::new(EPOCH, 2);
    assert_eq!(compare(&none, &agents, SiteSplit::All, TWO), Err(CapacityError::NoSites));
    assert_eq!(suggest(&none, &agents, SiteSplit::Nearest(3), 1, 1, TWO), Err(CapacityError::NoSites));
    assert_eq!(compare(&sites, &[], SiteSplit::All, TWO), Err(CapacityError::NoAgents(EPOCH)));
    agents.iter_mut().for_each(|agent| agent.change = AgentChange::Leaves);
    assert_eq!(compare(&sites, &agents, SiteSplit::All, TWO), Err(CapacityError::NobodyLeft(EPOCH)));
    assert_eq!(suggest(&sites, &agents, SiteSplit::All, 1, 1, TWO), Err(CapacityError::NothingToSuggest));
    agents[0].coordinate.pop();
    assert_eq!(compare(&sites, &agents, SiteSplit::All, TWO), Err(CapacityError::Coordinate(2)));
    let foreseen = Strategy::ALL.iter().copied().filter(|one| SiteSplit::try_from(*one).is_ok()).map(String::from);
    assert_eq!(foreseen.collect::<Vec<_>>(), ["random", "gnp-top1", "gnp-top3"]);
    let refused = SiteSplit::try_from(Strategy::EarliestFinish).unwrap_err().to_string();
    assert_eq!(refused, "a plan supports random and gnp-top1 to gnp-top3, but not earliest-finish");
}

#[test]
fn slots_and_heights_of_an_added_agent_are_the_median_agents() {
    let mut agents: Vec<Agent> =
        [3.0, 1.0, 2.0].iter().map(|height| agent("a", &[0.0, *height], AgentChange::Stays)).collect();
    agents[0].slots = 9;
    assert_eq!((usual_slots(&agents), beside(&[7.0, 50.0], &agents)), (2, vec![7.0, 2.0]));
    assert_eq!((usual_slots(&[]), beside(&[], &[])), (1, vec![0.0]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn with_the_nearest_alone_another_agent_never_raises_the_mean(seed in any::<u64>(), count in 1_usize..8) {
        let (sites, mut agents) = network(60, count + 1, seed);
        agents[count].change = AgentChange::Comes;
        let compared = compare(&sites, &agents, SiteSplit::Nearest(1), TWO).unwrap();
        prop_assert!(compared.after.mean_ms <= compared.before.mean_ms, "{compared:?}");
    }

    #[test]
    fn removing_is_the_inverse_of_adding_and_every_site_is_somebodys(seed in any::<u64>(), which in 0_usize..5) {
        let (sites, mut agents) = network(60, 5, seed);
        for split in [SiteSplit::All, SiteSplit::Nearest(1), SiteSplit::Nearest(3)] {
            agents[which].change = AgentChange::Comes;
            let added = compare(&sites, &agents, split, TWO).unwrap();
            agents[which].change = AgentChange::Leaves;
            let removed = compare(&sites, &agents, split, TWO).unwrap();
            prop_assert!(added.before == removed.after && added.after == removed.before);
            for outlook in [added.before, added.after] {
                let sum = |of: fn(&Load) -> f64| outlook.loads.iter().flatten().map(of).sum::<f64>();
                prop_assert!(close(sum(|load| load.sites), 60.0) && close(sum(|load| load.share), 1.0));
                let longest = outlook.loads.iter().flatten().map(|load| load.busy).max();
                prop_assert!(longest == Some(outlook.makespan));
            }
        }
    }

    #[test]
    fn the_order_of_agents_and_the_number_of_threads_change_nothing(seed in any::<u64>()) {
        let (sites, agents) = network(60, 7, seed);
        let mut backwards = agents.clone();
        backwards.reverse();
        for split in [SiteSplit::All, SiteSplit::Nearest(1), SiteSplit::Nearest(3)] {
            let one = compare(&sites, &agents, split, NonZeroUsize::MIN).unwrap();
            prop_assert!(one == compare(&sites, &agents, split, TWO).unwrap());
            let other = compare(&sites, &backwards, split, TWO).unwrap().before;
            prop_assert!(close(one.before.mean_ms, other.mean_ms));
            for (here, there) in one.before.loads.iter().flatten().zip(other.loads.iter().rev().flatten()) {
                prop_assert!(close(here.sites, there.sites) && close(here.work.as_secs_f64(), there.work.as_secs_f64()));
            }
        }
    }
}
