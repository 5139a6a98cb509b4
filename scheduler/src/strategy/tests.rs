//! Tests the properties that all strategies have, and the properties of single strategies.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::{Just, Strategy as _, any, prop, prop_assert, prop_assert_eq, proptest};

use super::fixture::candidate;
use super::*;
use crate::model::geo::{Direction, Position};
use crate::model::{AgentId, FallbackCause, Rtt, Strategy};

fn fleet(size: i64) -> Vec<Candidate> {
    (1..=size).map(|i| candidate(i, Some(f64::from(u16::try_from(i).unwrap()) * 10.0), None)).collect()
}

#[test]
fn nobody_is_chosen_among_nobody() {
    for &strategy in Strategy::ALL {
        assert_eq!(choose(strategy, &Site::default(), &[], 1), None);
    }
}

#[test]
fn top1_takes_the_nearest_and_a_measured_distance_beats_a_predicted_one() {
    let agents = [candidate(1, Some(10.0), Some(90.0)), candidate(2, Some(50.0), None), candidate(3, None, None)];
    let choice = choose(Strategy::GNP_TOP1, &Site::default(), &agents, 9).unwrap();
    assert_eq!(choice.agent, AgentId::new(2));
    assert_eq!(choice.candidates, [agents[1]]);
    assert_eq!(choice.fallback, None);
}

#[test]
fn an_agent_that_might_be_far_ranks_by_what_is_expected_of_it() {
    let risky = Candidate { expected: Rtt::try_from_millis_f64(60.0).ok(), ..candidate(1, Some(10.0), None) };
    let sure = candidate(2, Some(50.0), None);
    assert_eq!(choose(Strategy::GNP_TOP1, &Site::default(), &[risky, sure], 1).unwrap().agent, AgentId::new(2));
}

#[test]
fn top3_draws_each_of_the_three_nearest_and_ranks_them() {
    let agents = fleet(10);
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let choice = choose(Strategy::GNP_TOP3, &Site::default(), &agents, seed).unwrap();
        assert_eq!(choice.candidates, agents[..3]);
        seen.insert(choice.agent.get());
    }
    assert_eq!(seen, BTreeSet::from([1, 2, 3]));
}

#[test]
fn fewer_agents_than_the_strategy_ranks_are_all_candidates() {
    let choice = choose(Strategy::GNP_TOP3, &Site::default(), &fleet(2), 5).unwrap();
    assert_eq!(choice.candidates.len(), 2);
    assert_eq!(choose(Strategy::GNP_TOP3, &Site::default(), &fleet(1), 5).unwrap().agent, AgentId::new(1));
}

#[test]
fn without_any_distance_any_agent_is_drawn_and_the_choice_says_why() {
    let agents: Vec<Candidate> = (1..=5).map(|i| candidate(i, None, None)).collect();
    let drawn: BTreeSet<i64> = (0..200)
        .map(|seed| {
            let choice = choose(Strategy::GNP_TOP3, &Site::default(), &agents, seed).unwrap();
            assert!(choice.fallback.is_some());
            choice.agent.get()
        })
        .collect();
    assert_eq!(drawn.len(), 5);
}

#[test]
fn random_reaches_every_agent_about_evenly() {
    let agents = fleet(8);
    let mut counts = [0_u32; 8];
    for seed in 0..4_000 {
        let agent = choose(Strategy::Random, &Site::default(), &agents, seed).unwrap().agent.get();
        counts[usize::try_from(agent - 1).unwrap()] += 1;
    }
    assert!(counts.iter().all(|count| (400..600).contains(count)), "{counts:?}");
}

/// Agents with all values that strategies use: distance, position, country and address.
fn full(agents: &[(f64, f64, u8)]) -> Vec<Candidate> {
    (1..)
        .zip(agents)
        .map(|(number, &(millis, latitude, net))| Candidate {
            home: AgentLocation {
                country: Some(if net % 2 == 0 { *b"CN" } else { *b"JP" }),
                direction: Position::try_new(latitude, 100.0).ok().map(Direction::from),
                address: Some(IpAddr::from([10, net, 0, 1])),
            },
            ..candidate(number, Some(millis), None)
        })
        .collect()
}

fn site(host: &str) -> Site<'_> {
    let position = Position::try_new(39.9, 100.0).ok();
    Site { host, address: Some(IpAddr::from([10, 77, 3, 9])), position, work: None }
}

#[test]
fn whoever_needs_what_is_not_known_draws_and_says_what_it_is() {
    let agents = fleet(6);
    let cases = [
        (Strategy::Geographic, Site::default(), FallbackCause::NoPosition),
        (Strategy::Geographic, site("a.cn"), FallbackCause::NoAgentPosition),
        (Strategy::Prefix, Site::default(), FallbackCause::NoAddress),
        (Strategy::Prefix, site("a.cn"), FallbackCause::NothingShared),
        (Strategy::Domain, site("[2001:db8::1]"), FallbackCause::NoSuffix),
        (Strategy::Domain, site("10.0.0.1"), FallbackCause::NoSuffix),
    ];
    for (strategy, site, cause) in cases {
        assert_eq!(choose(strategy, &site, &agents, 3).unwrap().fallback, Some(cause.into()), "{strategy}");
    }
}

#[test]
fn the_suffix_decides_and_its_country_comes_first() {
    let agents = full(&[(1.0, 0.0, 0), (1.0, 0.0, 1), (1.0, 0.0, 2), (1.0, 0.0, 3)]);
    let taken = |host: &str| choose(Strategy::Domain, &site(host), &agents, 1).unwrap().agent.get();
    assert_eq!(taken("www.a.edu.cn"), taken("b.edu.cn"));
    assert!([1, 3].contains(&taken("www.a.edu.cn")), "an agent in China");
    assert!([2, 4].contains(&taken("a.co.jp")), "one in Japan");
    let suffixes: BTreeSet<i64> = ["a.com", "a.org", "a.net", "a.info", "a.io", "a.de", "a.fr"].map(taken).into();
    assert!(suffixes.len() > 1, "not all suffixes go to one agent");
}

#[test]
fn the_same_city_is_equally_near_and_a_longer_prefix_wins() {
    let agents = full(&[(1.0, 39.9, 1), (1.0, 39.95, 77), (1.0, 31.2, 3), (1.0, 80.0, 5)]);
    let taken = |strategy| -> BTreeSet<i64> {
        (0..100).map(|seed| choose(strategy, &site("a.cn"), &agents, seed).unwrap().agent.get()).collect()
    };
    assert_eq!(taken(Strategy::Geographic), BTreeSet::from([1, 2]), "six kilometres are nothing");
    assert_eq!(taken(Strategy::Prefix), BTreeSet::from([2]));
}

#[test]
fn xor_finds_the_nearest_identifier_and_passes_over_full_agents() {
    let agents = fleet(40);
    let counts = (0..4000).fold([0_u32; 41], |mut counts, number| {
        let host = format!("{number}.example");
        let choice = choose(Strategy::Kademlia, &site(&host), &agents, 1).unwrap();
        counts[usize::try_from(choice.agent.get()).unwrap()] += 1;
        counts
    });
    assert!(counts[1..].iter().all(|count| *count > 0), "every agent is the nearest to some: {counts:?}");
    let choice = choose(Strategy::Kademlia, &site("a.cn"), &agents, 1).unwrap();
    assert_eq!(choice.agent, choice.candidates[0].agent);
    let full = |one: &Candidate| if one.agent == choice.agent { Candidate { load: 1, ..*one } } else { *one };
    let busy: Vec<Candidate> = agents.iter().map(full).collect();
    assert_eq!(choose(Strategy::Kademlia, &site("a.cn"), &busy, 1).unwrap().agent, choice.candidates[1].agent);
}

#[test]
fn balanced_draws_by_room_and_nearness_and_leaves_the_full_alone() {
    let mut agents = fleet(9);
    agents.iter_mut().for_each(|one| one.capacity = 4);
    let drawn = |agents: &[Candidate]| {
        (0..6000).fold([0_u32; 10], |mut counts, seed| {
            let agent = choose(Strategy::GnpBalanced, &Site::default(), agents, seed).unwrap().agent;
            counts[usize::try_from(agent.get()).unwrap()] += 1;
            counts
        })
    };
    // At 10, 20, ..., 50 ms, the weights are 1, 1/2, 1/3, 1/4 and 1/5. Their sum is 2.28.
    let even = drawn(&agents);
    for (agent, share) in [(1, 0.438), (2, 0.219), (3, 0.146), (4, 0.109), (5, 0.088)] {
        let seen = f64::from(even[agent]) / 6000.0;
        assert!((seen - share).abs() < 0.03, "{agent}: {seen} {even:?}");
    }
    assert_eq!(even[6..], [0; 4]);
    agents[0].load = 4;
    agents[1].load = 2;
    let busy = drawn(&agents);
    assert_eq!(busy[1], 0, "it is full");
    assert!(busy[2] < busy[3], "half free at 20 ms weighs 1/4, free at 30 ms 1/3: {busy:?}");
}

#[test]
fn balanced_goes_by_load_where_distances_are_unsure() {
    let near = |measured: bool, spread: f64| {
        let mut agents = fleet(2);
        for (agent, millis) in agents.iter_mut().zip([10.0, 40.0]) {
            let rtt = Rtt::try_from_millis_f64(millis).ok();
            agent.capacity = 4;
            (agent.predicted, agent.measured) = (rtt, rtt.filter(|_| measured));
            agent.spread = Some(Spread::new(spread));
        }
        agents[0].load = 3;
        let drawn = (0..4000).filter(|seed| {
            choose(Strategy::GnpBalanced, &Site::default(), &agents, *seed).unwrap().agent == agents[0].agent
        });
        f64::from(u32::try_from(drawn.count()).unwrap()) / 4000.0
    };
    // A quarter of the nearer agent's slots is free, and the other agent is four times as far, so
    // both agents have the weight 1/4. With uncertain distances, the ratio of the distances has the
    // exponent 1/3, and the weights are 1/4 and 0.63.
    let (measured, sure, unsure, unknown) = (near(true, 0.9), near(false, 0.0), near(false, 0.25), near(false, 9.0));
    assert!((measured - 0.5).abs() < 0.03 && (sure - 0.5).abs() < 0.03, "{measured} {sure}");
    assert!((unsure - 0.284).abs() < 0.03, "{unsure}");
    assert!((unknown - 0.2).abs() < 0.03, "nothing but room is left: {unknown}");
}

#[test]
fn the_earliest_finish_is_the_wait_and_the_crawl_together() {
    let agents = fleet(3);
    let quick = Work { pages: 100, bytes: 100_000, interval: Duration::ZERO };
    let of = |work: Work, agents: &[Candidate]| {
        let site = Site { work: Some(work), ..Site::default() };
        choose(Strategy::EarliestFinish, &site, agents, 1).unwrap().agent.get()
    };
    assert_eq!(of(quick, &agents), 1);
    let waits = |seconds: f64| Candidate { wait: Some(Duration::from_secs_f64(seconds)), ..agents[0] };
    assert_eq!(of(quick, &[waits(0.9), agents[1], agents[2]]), 1, "a second here, two there");
    assert_eq!(of(quick, &[waits(1.2), agents[1], agents[2]]), 2);
    let throttled = Work { interval: Duration::from_secs(1), ..quick };
    assert_eq!(of(throttled, &[waits(1.0), agents[1], agents[2]]), 2, "where requests wait distance hardly counts");
    let slow = Candidate { speed: Speed::new(5.0, None), ..agents[0] };
    assert_eq!(of(quick, &[slow, agents[1], agents[2]]), 2);
}

proptest! {
    #[test]
    fn rendezvous_moves_only_what_it_must(
        numbers in prop::collection::btree_set(1_i64..500, 2..40),
        hosts in prop::collection::vec("[a-z]{1,8}\\.(cn|com|org)", 1..30),
        gone in any::<prop::sample::Index>(),
    ) {
        let agents: Vec<Candidate> = numbers.iter().map(|number| candidate(*number, None, None)).collect();
        let gone = agents[gone.index(agents.len())].agent;
        let fewer: Vec<Candidate> = agents.iter().filter(|one| one.agent != gone).copied().collect();
        for host in &hosts {
            for strategy in [Strategy::Hash, Strategy::Kademlia, Strategy::Domain] {
                let before = choose(strategy, &site(host), &agents, 1).unwrap();
                let after = choose(strategy, &site(host), &fewer, 1).unwrap();
                // If an agent leaves, only its sites move, each to the next agent in rank.
                if before.agent == gone {
                    prop_assert_eq!(before.candidates.get(1).map(|next| next.agent), Some(after.agent));
                } else {
                    prop_assert_eq!(before.agent, after.agent);
                }
            }
        }
    }

    #[test]
    fn every_strategy_is_a_function_of_the_set_the_site_and_the_seed(
        (agents, shuffled) in prop::collection::vec(
            ((prop::option::of(1.0..500.0), prop::option::of(1.0..500.0)), -80.0..80.0_f64, any::<u8>(), 0_u32..3),
            1..20,
        )
            .prop_map(|agents| {
                let facts: Vec<(f64, f64, u8)> = agents.iter().map(|one| (1.0, one.1, one.2)).collect();
                let loaded = (1..).zip(full(&facts)).zip(&agents).map(|((number, one), ((predicted, measured), _, _, load))| {
                    Candidate { load: *load, home: one.home, ..candidate(number, *predicted, *measured) }
                });
                loaded.collect::<Vec<_>>()
            })
            .prop_flat_map(|agents| (Just(agents.clone()), Just(agents).prop_shuffle())),
        host in "[a-z]{1,12}\\.(cn|com|jp|uk)",
        seed in any::<u64>(),
    ) {
        for &strategy in Strategy::ALL {
            // The default site has no name, address or position, so some strategies use a fallback.
            for site in [site(&host), Site::default()] {
                let choice = choose(strategy, &site, &agents, seed).unwrap();
                prop_assert_eq!(&choice, &choose(strategy, &site, &shuffled, seed).unwrap());
                prop_assert!(choice.candidates.iter().any(|one| one.agent == choice.agent));
                prop_assert!(choice.candidates.iter().all(|one| agents.contains(one)), "nobody who was not asked");
                prop_assert_eq!(choice.fallback.is_none(), choice.strategy == strategy);
                let by_distance = strategy.needs_distance() && choice.fallback.is_none();
                if by_distance && !matches!(strategy, Strategy::GnpConfirmed | Strategy::EarliestFinish) {
                    let known = agents.iter().filter_map(Candidate::distance);
                    let worst = choice.candidates.iter().filter_map(Candidate::distance).max().unwrap();
                    prop_assert!(known.filter(|distance| *distance < worst).count() < choice.candidates.len(), "none nearer");
                }
                // A full agent is not chosen while a candidate has a free slot. The exceptions are
                // the strategies in `timed`, which decide by name, measured distance or end of
                // crawl.
                let timed = [Strategy::Hash, Strategy::Domain, Strategy::GnpConfirmed, Strategy::EarliestFinish];
                let room = |one: &Candidate| one.level().has_room();
                if !timed.contains(&strategy) && choice.fallback.is_none() && choice.candidates.iter().any(room) {
                    prop_assert!(choice.candidates.iter().any(|one| one.agent == choice.agent && room(one)));
                }
            }
        }
    }
}
