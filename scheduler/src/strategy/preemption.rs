//! Finds stragglers: running crawls that are preempted because another agent would end them sooner.
//!
//! Stragglers are moved only to idle slots. The caller has checked that no site waits for the idle
//! slots. A crawl resumes where it stopped, so only the remaining work is compared. The remaining
//! time at the current agent is computed from the speed that the agent reported, or else from the
//! prediction. The time at another agent is predicted.
//!
//! A crawl may be slower than predicted because of its agent or because of its site. The cause is
//! unknown, so the square root of the factor by which the crawl is slower is attributed to the
//! site.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::AgentId;
use crate::strategy::{Candidate, Work};

use super::crawl_duration;
use super::crawl_duration::{HELD_BACK, OPENING_TRIPS, PreparedWork};

/// No lease is preempted within this time after its grant, because its first seconds (connection,
/// robots.txt, sitemaps) do not show the crawl's speed.
pub const LEAST_UNDER_WAY: Duration = Duration::from_secs(10);
/// Maximum number of preemptions that one call of [`moves`] requests. This maximum is small,
/// because the estimates behind a preemption are uncertain.
const MOST_AT_ONCE: usize = 4;
/// The duration of a handover: the aborted request, two passes of the scheduler, and one message to
/// each of the two agents. The request interval of the site and the round trips before the first
/// page are added to this duration.
const HANDOVER: Duration = Duration::from_secs(2);
/// A crawl is preempted if its time at another agent is less than this share of its remaining time.
/// The share is well below 1, because estimates of sizes, speeds and distances err by about ten per
/// cent each (`accuracy.md`, `method.md`).
const SHARE: f64 = 0.7;

#[derive(Debug, Clone)]
pub struct UnderWay {
    /// Time since the lease was granted.
    pub took: Duration,
    /// The predicted duration of the crawl.
    pub takes: Duration,
    /// The time limit of the crawl.
    pub at_most: Duration,
    /// The page limit of the crawl.
    pub most_pages: u32,
    /// All work of the site, including fetched pages; typical work if the site's size is unknown.
    pub work: Work,
    /// Whether the site's size is known.
    pub sized: bool,
    /// Number of fetched pages and the time for them, from the agent's last report;
    /// `None` if unknown.
    pub fetched: Option<(u32, Duration)>,
    /// The current agent.
    pub here: Candidate,
    /// The agents that may get the crawl. Agents that the crawl's batch excludes are left out, and
    /// so are agents at which a crawl of the site crashed.
    pub elsewhere: Vec<Candidate>,
}

/// A preempted crawl, and the agent that should continue it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrawlMove {
    /// The index of the crawl.
    pub crawl: usize,
    pub to: AgentId,
    /// The remaining time at the current agent.
    pub here: Duration,
    /// Time until the crawl ends at the new agent.
    pub there: Duration,
}

/// Returns the crawls to preempt, the crawl with the longest remaining time first. `free` contains
/// the number of idle slots per agent.
pub fn moves(crawls: &[UnderWay], free: &BTreeMap<AgentId, u32>) -> Vec<CrawlMove> {
    let mut free = free.clone();
    let mut lasting: Vec<(usize, &UnderWay, RemainingWork)> = crawls
        .iter()
        .enumerate()
        .filter(|(_, crawl)| crawl.took >= LEAST_UNDER_WAY)
        .filter_map(|(index, crawl)| Some((index, crawl, crawl.rest()?)))
        .collect();
    lasting.sort_by(|one, other| other.2.here_s.total_cmp(&one.2.here_s).then(one.0.cmp(&other.0)));
    let mut moves = Vec::new();
    for (index, crawl, rest) in lasting {
        let Some((there_s, to)) = crawl.first_end(&rest, &free) else { continue };
        if there_s >= SHARE * rest.here_s {
            continue;
        }
        let (Ok(here), Ok(there)) = (Duration::try_from_secs_f64(rest.here_s), Duration::try_from_secs_f64(there_s))
        else {
            continue;
        };
        moves.push(CrawlMove { crawl: index, to, here, there });
        if let Some(slots) = free.get_mut(&to) {
            *slots -= 1;
        }
        if moves.len() == MOST_AT_ONCE {
            break;
        }
    }
    moves
}

/// The remaining work of a crawl.
#[derive(Debug, Clone, Copy)]
struct RemainingWork {
    /// The remaining time at the current agent, in seconds.
    here_s: f64,
    /// The remaining pages, estimated from the remaining time and the speed so far.
    pages: f64,
    /// The factor by which a page is assumed to take longer than predicted at other agents.
    slower: f64,
    /// The part of the site's work that does not depend on the agent.
    counted: PreparedWork,
}

impl UnderWay {
    /// The remaining work; `None` if it cannot be estimated.
    fn rest(&self) -> Option<RemainingWork> {
        let (counted, distance) = (self.work.counted(), self.here.distance()?);
        let (interval_s, predicted_s) = (counted.interval_s(distance), counted.page_s(distance, self.here.speed));
        let (page_s, remaining, slower) = match self.fetched {
            Some((pages, took)) if pages > 0 => {
                let page_s = took.as_secs_f64() / f64::from(pages);
                // The crawl may reach its page limit before all pages of the site are fetched.
                let left = self.work.left(pages, self.sized).pages.min(self.most_pages.saturating_sub(pages));
                let left = Duration::try_from_secs_f64(f64::from(left) * page_s).ok()?;
                // If the request interval determines the time per page, this time does not show how
                // fast the agent is.
                let held_back = page_s < HELD_BACK * interval_s;
                let slower = if held_back { 1.0 } else { (page_s / predicted_s).sqrt() };
                (page_s, crawl_duration::remaining(left, self.took.saturating_sub(took)), slower)
            }
            _ => (predicted_s.max(interval_s), crawl_duration::remaining(self.takes, self.took), 1.0),
        };
        let rest =
            RemainingWork { here_s: remaining.as_secs_f64(), pages: remaining.as_secs_f64() / page_s, slower, counted };
        // The crawl may reach its time limit before all its pages are fetched.
        let here_s = rest.here_s.min(self.at_most.saturating_sub(self.took).as_secs_f64());
        (rest.pages.is_finite() && rest.slower.is_finite()).then_some(RemainingWork { here_s, ..rest })
    }

    /// The agent with an idle slot where the remaining work would end first, and the seconds until
    /// this end. Ties go to the agent with the smallest identifier.
    fn first_end(&self, rest: &RemainingWork, free: &BTreeMap<AgentId, u32>) -> Option<(f64, AgentId)> {
        let interval_s = self.work.interval.as_secs_f64();
        let mut first: Option<(f64, AgentId)> = None;
        for one in self.elsewhere.iter().filter(|one| one.agent != self.here.agent) {
            let Some(there_s) = rest.there_s(interval_s, one) else { continue };
            let sooner = first.is_none_or(|(least, agent)| (there_s, one.agent) < (least, agent));
            // The lookup comes last, because few agents pass the comparison.
            if sooner && free.get(&one.agent).is_some_and(|slots| *slots > 0) {
                first = Some((there_s, one.agent));
            }
        }
        first
    }
}

impl RemainingWork {
    /// The seconds that another agent would need, including the handover; `None` if the agent's
    /// distance is unknown.
    fn there_s(&self, interval_s: f64, agent: &Candidate) -> Option<f64> {
        let distance = agent.distance()?;
        let opening_s = OPENING_TRIPS * distance.as_duration().as_secs_f64();
        let page_s = (self.slower * self.counted.page_s(distance, agent.speed)).max(self.counted.interval_s(distance));
        Some(HANDOVER.as_secs_f64() + interval_s + opening_s + self.pages * page_s)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

    use crate::strategy::Speed;
    use crate::strategy::fixture::measured;

    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn agent(number: i64, millis: u32) -> Candidate {
        measured(number, f64::from(millis))
    }

    /// A crawl of 1,000 pages at an agent with a round trip of 200 ms. Each page takes one round
    /// trip.
    fn far() -> UnderWay {
        let work = Work { pages: 1000, bytes: 1_000_000, interval: Duration::ZERO };
        let (here, elsewhere, most_pages) = (agent(1, 200), vec![agent(2, 20), agent(3, 100)], u32::MAX);
        UnderWay {
            took: secs(20),
            takes: secs(200),
            at_most: secs(3600),
            most_pages,
            work,
            sized: true,
            fetched: None,
            here,
            elsewhere,
        }
    }

    fn idle(agents: &[(i64, u32)]) -> BTreeMap<AgentId, u32> {
        agents.iter().map(|(number, slots)| (AgentId::new(*number), *slots)).collect()
    }

    fn to(moves: &[CrawlMove]) -> Vec<(usize, i64)> {
        moves.iter().map(|one| (one.crawl, one.to.get())).collect()
    }

    #[test]
    fn what_another_ends_clearly_sooner_is_asked_for_and_nothing_else() {
        let moved = moves(&[far()], &idle(&[(2, 1), (3, 1)]));
        assert_eq!(to(&moved), [(0, 2)]);
        // 180 s remain for 900 pages. Agent 2 is at a tenth of the distance, so it needs 18 s plus
        // the handover.
        assert_eq!(moved[0].here, secs(180));
        assert!((moved[0].there.as_secs_f64() - (2.0 + 0.06 + 18.0)).abs() < 0.01, "{:?}", moved[0].there);
        assert_eq!(to(&moves(&[far()], &idle(&[(3, 1)]))), [(0, 3)], "half as far is worth it");
        let nearly = UnderWay { elsewhere: vec![agent(3, 150)], ..far() };
        assert!(moves(&[nearly], &idle(&[(3, 1)])).is_empty(), "three quarters are not");
        let young = UnderWay { took: secs(9), ..far() };
        assert!(moves(&[young], &idle(&[(2, 1)])).is_empty(), "nobody knows its pace");
        let ending = UnderWay { took: secs(198), fetched: Some((990, secs(198))), ..far() };
        assert!(moves(std::slice::from_ref(&ending), &idle(&[(2, 1)])).is_empty(), "ten pages are left");
        let endless = UnderWay { sized: false, ..ending };
        assert_eq!(to(&moves(&[endless], &idle(&[(2, 1)]))), [(0, 2)], "nobody knows how many are");
        let slow = UnderWay { took: secs(60), fetched: Some((100, secs(60))), ..far() };
        assert_eq!(to(&moves(std::slice::from_ref(&slow), &idle(&[(2, 1)]))), [(0, 2)]);
        let full = UnderWay { most_pages: 102, ..slow };
        assert!(moves(&[full], &idle(&[(2, 1)])).is_empty(), "two pages are left of what it may fetch");
        let cut = UnderWay { at_most: secs(22), ..far() };
        assert!(moves(&[cut], &idle(&[(2, 1)])).is_empty(), "its time ends before it is handed over");
    }

    #[test]
    fn a_pace_that_politeness_sets_is_nobodys_fault_and_one_that_may_be_the_sites_counts_half() {
        let work = Work { interval: secs(1), ..far().work };
        let polite = UnderWay { work, takes: secs(1000), fetched: Some((20, secs(20))), ..far() };
        assert!(moves(&[polite], &idle(&[(2, 1)])).is_empty());
        // The crawl `slow(9)` is nine times slower than predicted. At agent 2, which is as near as
        // agent 1, the crawl is assumed to be three times slower than predicted.
        let slow = |times: u64| UnderWay {
            took: secs(100),
            fetched: Some((u32::try_from(500 / times).expect("small"), secs(100))),
            elsewhere: vec![agent(2, 200)],
            ..far()
        };
        let moved = moves(&[slow(9)], &idle(&[(2, 1)]));
        assert_eq!(to(&moved), [(0, 2)]);
        let share = moved[0].there.as_secs_f64() / moved[0].here.as_secs_f64();
        assert!((0.33..0.34).contains(&share), "{share}");
        assert!(moves(&[slow(2)], &idle(&[(2, 1)])).is_empty(), "it may well be the site");
        // Answers take 1.2 s, so the agent sends a request every 2.4 s, as predicted.
        let late = UnderWay {
            here: agent(1, 1200),
            took: secs(96),
            takes: secs(2404),
            fetched: Some((40, secs(96))),
            ..far()
        };
        let moved = moves(&[late], &idle(&[(2, 1)]));
        assert!((moved[0].there.as_secs_f64() - (2.0 + 0.06 + 19.2)).abs() < 0.01, "{:?}", moved[0].there);
    }

    #[test]
    fn those_that_go_on_longest_go_first_and_a_slot_takes_one() {
        let lasts = |takes| UnderWay { takes: secs(takes), ..far() };
        let crawls = [lasts(200), lasts(400), lasts(300)];
        assert_eq!(to(&moves(&crawls, &idle(&[(2, 1)]))), [(1, 2)]);
        assert_eq!(to(&moves(&crawls, &idle(&[(2, 1), (3, 1)]))), [(1, 2), (2, 3)]);
        let many = vec![far(); 9];
        assert_eq!(moves(&many, &idle(&[(2, 9)])).len(), MOST_AT_ONCE);
        assert!(moves(&many, &idle(&[(1, 9), (2, 0)])).is_empty(), "it has it, and the others have no slot");
    }

    fn crawls() -> impl Strategy<Value = Vec<UnderWay>> {
        let near = prop_oneof![Just(0_u32), 1_u32..1000];
        let fetched = prop::option::of((0_u32..5000, 0_u64..5000));
        let one = (
            (0_u64..5000, 0_u64..5000, 0_u64..9000, any::<u32>()),
            (any::<u32>(), any::<u64>(), 0_u64..3000, any::<bool>()),
            fetched,
            (1_i64..5, prop::collection::vec(near, 6)),
        );
        let one = one.prop_map(
            |((took, takes, at_most, most_pages), (pages, bytes, interval, sized), fetched, (here, millis))| {
                let known = |number: i64, millis: u32| match millis {
                    0 => Candidate::new(AgentId::new(number), 1),
                    millis => Candidate { speed: Speed::new(1.5, Some(1e6)), ..agent(number, millis) },
                };
                UnderWay {
                    took: secs(took),
                    takes: secs(takes),
                    at_most: secs(at_most),
                    most_pages,
                    work: Work { pages, bytes, interval: Duration::from_millis(interval) },
                    sized,
                    fetched: fetched.map(|(pages, took)| (pages, secs(took))),
                    here: known(here, millis[0]),
                    elsewhere: (1..).zip(&millis[1..]).map(|(number, millis)| known(number, *millis)).collect(),
                }
            },
        );
        prop::collection::vec(one, 0..12)
    }

    proptest! {
        #[test]
        fn whatever_moves_may_pays_and_finds_an_idle_slot(
            crawls in crawls(),
            slots in prop::collection::vec(0_u32..3, 5),
        ) {
            let free: BTreeMap<AgentId, u32> = (1..).map(AgentId::new).zip(slots.iter().copied()).collect();
            let moved = moves(&crawls, &free);
            prop_assert!(moved.len() <= MOST_AT_ONCE);
            for one in &moved {
                let crawl = &crawls[one.crawl];
                prop_assert!(one.to != crawl.here.agent && crawl.took >= LEAST_UNDER_WAY);
                let taker = crawl.elsewhere.iter().find(|agent| agent.agent == one.to);
                prop_assert!(taker.is_some_and(|agent| agent.distance().is_some()));
                prop_assert!(one.there.as_secs_f64() <= SHARE * one.here.as_secs_f64() + 1e-6);
                prop_assert!(one.there >= HANDOVER && one.here <= crawl.at_most.saturating_sub(crawl.took));
                prop_assert_eq!(moved.iter().filter(|other| other.crawl == one.crawl).count(), 1);
            }
            for (agent, slots) in &free {
                let there = moved.iter().filter(|one| one.to == *agent).count();
                prop_assert!(u32::try_from(there).is_ok_and(|there| there <= *slots));
            }
            let nobody: BTreeMap<AgentId, u32> = free.keys().map(|agent| (*agent, 0)).collect();
            prop_assert!(moves(&crawls, &nobody).is_empty(), "no slot idles");
        }

        #[test]
        fn the_order_of_candidates_changes_nothing(crawls in crawls(), slots in prop::collection::vec(0_u32..3, 5)) {
            let free: BTreeMap<AgentId, u32> = (1..).map(AgentId::new).zip(slots).collect();
            let mut turned = crawls.clone();
            turned.iter_mut().for_each(|crawl| crawl.elsewhere.reverse());
            prop_assert_eq!(moves(&crawls, &free), moves(&turned, &free));
        }

        #[test]
        fn what_is_left_is_never_nothing_nor_more_than_all_or_its_growth(pages: u32, bytes: u64, fetched: u32, sized: bool) {
            let work = Work { pages, bytes, interval: Duration::ZERO };
            let left = work.left(fetched, sized);
            prop_assert!(left.pages >= 1 && left.pages <= pages.max(fetched).max(1));
            prop_assert!(fetched > 0 || left.pages == pages.max(1));
            if left.pages <= pages {
                prop_assert!(left.bytes <= bytes);
            }
        }
    }
}
