//! Tests which tasks move and which do not.

use proptest::prelude::{prop, prop_assert, proptest};

use super::*;
use crate::strategy::RecordedCandidate;
use crate::strategy::fixture::measured;

fn agent(agent: i64, load: u32, capacity: u32) -> Candidate {
    let pace = Duration::from_secs(1);
    Candidate { load, pace, ..Candidate::new(AgentId::new(agent), capacity) }
}

fn at_distance(number: i64, load: u32, millis: f64) -> Candidate {
    Candidate { load, capacity: 2, ..measured(number, millis) }
}

fn waits(at: i64, takers: &[i64]) -> MovableTask {
    let takers = takers.iter().map(|&agent| BalanceTarget { agent: AgentId::new(agent), nearer: false });
    MovableTask { at: AgentId::new(at), takers: takers.collect() }
}

fn former(strategy: Strategy, chosen: i64, listed: &[(i64, f64)]) -> RecordedChoice {
    let listed = listed.iter().map(|&(agent, millis)| RecordedCandidate {
        agent: AgentId::new(agent),
        predicted: None,
        measured: Rtt::try_from_millis_f64(millis).ok(),
    });
    RecordedChoice { agent: AgentId::new(chosen), strategy, fallback: None, listed: listed.collect() }
}

fn moved(moves: &[TaskMove]) -> Vec<(usize, i64, Gain)> {
    moves.iter().map(|one| (one.queued, one.to.get(), one.gain)).collect()
}

#[test]
fn what_waits_goes_to_an_idle_candidate_and_not_to_an_idle_stranger() {
    let agents = [agent(1, 4, 2), agent(2, 1, 2), agent(3, 0, 2)];
    let moves = plan(&agents, &[waits(1, &[2]), waits(1, &[2])], 10);
    assert_eq!(moved(&moves), [(0, 2, Gain::BeginsAtOnce)], "2 has one slot, then nothing to gain; 3 is no candidate");
}

#[test]
fn nothing_leaves_an_agent_with_a_free_slot_and_nothing_that_is_gone_gives() {
    assert_eq!(plan(&[agent(1, 2, 2), agent(2, 0, 2)], &[waits(1, &[2])], 10), [], "it begins at once where it is");
    assert_eq!(plan(&[agent(2, 0, 2)], &[waits(1, &[2])], 10), [], "an agent that is gone is withdrawn from");
}

#[test]
fn one_task_a_slot_is_laid_ready_where_a_whole_round_less_waits() {
    let queue: Vec<MovableTask> = (0..9).map(|_| waits(1, &[2])).collect();
    // Three tasks wait at agent 1, and none at agent 2. One task moves, and is agent 2's next task.
    assert_eq!(moved(&plan(&[agent(1, 4, 1), agent(2, 1, 1)], &queue[..3], 10)), [(0, 2, Gain::EndsSooner)]);
    // Both queues are long. Tasks move until the times at which the queues end differ by less than
    // a quarter.
    let long = [agent(1, 101, 1), agent(2, 51, 1)];
    let queue_of_100: Vec<MovableTask> = (0..100).map(|_| waits(1, &[2])).collect();
    let moves = plan(&long, &queue_of_100, 100).len();
    assert!((8..=20).contains(&moves), "{moves} moves leave {} and {}", 101 - moves, 51 + moves);
    // Two tasks wait at agent 1, and one task waits at agent 2, so a move gains nothing.
    assert_eq!(plan(&[agent(1, 3, 1), agent(2, 2, 1)], &queue[..2], 10), []);
    assert_eq!(plan(&[agent(1, 2, 1), agent(2, 1, 1)], &queue[..1], 10), []);
}

#[test]
fn what_ends_sooner_where_it_waits_stays_there() {
    let slow = |load| Candidate { pace: Duration::from_secs(4), ..agent(2, load, 1) };
    assert_eq!(plan(&[agent(1, 3, 1), slow(0)], &[waits(1, &[2])], 10), [], "in three seconds here, in four there");
    assert_eq!(moved(&plan(&[agent(1, 5, 1), slow(0)], &[waits(1, &[2])], 10)), [(0, 2, Gain::BeginsAtOnce)]);
    // The queue of the slow agent ends last, so its task moves first, although it has fewer tasks.
    let agents = [agent(1, 5, 1), slow(3), agent(3, 0, 1)];
    assert_eq!(moved(&plan(&agents, &[waits(1, &[3]), waits(2, &[3])], 1)), [(1, 3, Gain::BeginsAtOnce)]);
}

#[test]
fn the_queue_that_ends_last_gives_first_and_of_the_idle_the_best_takes_first() {
    let agents = [agent(1, 3, 2), agent(2, 6, 2), agent(3, 1, 2), agent(4, 0, 2)];
    let moves = plan(&agents, &[waits(1, &[3, 4]), waits(2, &[3, 4]), waits(2, &[3, 4])], 2);
    assert_eq!(moved(&moves), [(1, 3, Gain::BeginsAtOnce), (2, 4, Gain::BeginsAtOnce)]);
}

#[test]
fn a_newcomer_is_a_taker_where_it_would_be_a_candidate() {
    let former = former(Strategy::GNP_TOP3, 5, &[(4, 10.0), (5, 40.0), (6, 50.0)]);
    let of = |newcomer: f64, known: &[i64]| -> Vec<(i64, bool)> {
        let available = [at_distance(4, 9, 10.0), at_distance(7, 0, newcomer)];
        let newcomers: Vec<AgentId> = known.iter().map(|&agent| AgentId::new(agent)).collect();
        takers(&former, &available, &newcomers).iter().map(|taker| (taker.agent.get(), taker.nearer)).collect()
    };
    assert_eq!(of(20.0, &[7]), [(4, false), (6, false), (7, true)]);
    assert_eq!(of(35.0, &[7]), [(4, false), (6, false), (7, false)], "nearer, not clearly");
    assert_eq!(of(60.0, &[7]), [(4, false), (6, false)], "three are nearer");
    assert_eq!(of(20.0, &[]), [(4, false), (6, false)], "it was there and was not among the three");
    let to = at_distance(7, 0, 20.0);
    let listed: Vec<i64> = relisted(&former, &to, &[to]).iter().map(|one| one.agent.get()).collect();
    assert_eq!(listed, [4, 7, 5], "the third is the fourth now");
}

#[test]
fn a_newcomer_that_is_clearly_nearer_takes_what_would_wait_no_longer_there() {
    let nearer = |load| {
        let queue =
            [MovableTask { takers: vec![BalanceTarget { agent: AgentId::new(2), nearer: true }], ..waits(1, &[]) }];
        moved(&plan(&[agent(1, 3, 2), agent(2, load, 2)], &queue, 10))
    };
    assert_eq!(nearer(1), [(0, 2, Gain::BeginsAtOnce)]);
    assert_eq!(nearer(2), [(0, 2, Gain::Nearer)]);
    assert_eq!(nearer(3), []);
}

#[test]
fn at_random_everybody_is_a_candidate_and_of_the_confirmed_only_the_near() {
    let available = [at_distance(1, 0, 9.0), at_distance(2, 0, 10.0), at_distance(3, 0, 90.0)];
    let of = |strategy, listed: &[(i64, f64)]| -> Vec<i64> {
        takers(&former(strategy, 1, listed), &available, &[]).iter().map(|taker| taker.agent.get()).collect()
    };
    assert_eq!(of(Strategy::Random, &[(1, 9.0)]), [2, 3]);
    assert_eq!(of(Strategy::GnpConfirmed, &[(1, 9.0), (2, 10.0), (3, 90.0)]), [2]);
    assert_eq!(of(Strategy::GNP_TOP1, &[(1, 9.0)]), Vec::<i64>::new());
}

proptest! {
    #[test]
    fn moving_ends_and_then_nothing_waits_while_a_candidate_idles(
        capacities in prop::collection::vec(1_u32..5, 2..7),
        tasks in prop::collection::vec((0_usize..7, prop::collection::btree_set(0_usize..7, 1..4)), 0..60),
        paces in prop::collection::vec(1_u64..5, 7..8),
        most in 1_usize..8,
    ) {
        let count = capacities.len();
        let id = |index: usize| AgentId::new(i64::try_from(index % count).unwrap());
        let mut queued: Vec<MovableTask> = tasks
            .iter()
            .map(|(at, others)| {
                let takers = others.iter().map(|&other| BalanceTarget { agent: id(other), nearer: false });
                MovableTask { at: id(*at), takers: takers.chain([BalanceTarget { agent: id(*at), nearer: false }]).collect() }
            })
            .collect();
        let fleet = |queued: &[MovableTask]| -> Vec<Candidate> {
            let load = |agent: AgentId| u32::try_from(queued.iter().filter(|task| task.at == agent).count()).unwrap();
            let one = |(index, &slots): (usize, &u32)| Candidate {
                pace: Duration::from_secs(paces[index]),
                ..agent(id(index).get(), load(id(index)), slots)
            };
            capacities.iter().enumerate().map(one).collect()
        };
        let mut passes = 0;
        loop {
            let before = fleet(&queued);
            let others: Vec<MovableTask> = queued
                .iter()
                .map(|task| MovableTask { takers: task.takers.iter().filter(|one| one.agent != task.at).copied().collect(), ..*task })
                .collect();
            let moves = plan(&before, &others, most);
            prop_assert!(moves.len() <= most);
            for one in &moves {
                prop_assert!(queued[one.queued].takers.iter().any(|taker| taker.agent == one.to), "only to a candidate");
                queued[one.queued].at = one.to;
            }
            let ends = |one: &Candidate| last_ends(one.level(), one.capacity, one.pace);
            let worst = |fleet: &[Candidate]| fleet.iter().filter(|one| one.load > 0).map(ends).max();
            prop_assert!(worst(&fleet(&queued)) <= worst(&before), "no queue outgrows the longest");
            if moves.is_empty() {
                break;
            }
            passes += 1;
            prop_assert!(passes <= 60 * count, "to and fro");
        }
        let fleet = fleet(&queued);
        let of = |agent: AgentId| fleet.iter().find(|one| one.agent == agent).unwrap();
        for task in &queued {
            let at = of(task.at);
            let here = last_ends(at.level(), at.capacity, at.pace);
            let better = |taker: &BalanceTarget| of(taker.agent).level().has_room() && of(taker.agent).next_ends() < here;
            prop_assert!(at.level().get() <= 0 || !task.takers.iter().any(better), "it waits and a candidate idles");
        }
    }
}
