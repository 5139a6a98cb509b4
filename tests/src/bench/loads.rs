//! Paper 003's second experiment (2.2, its Table 2) replayed: eight nodes, their rates and arrivals, with and without load levels.
//!
//! A discrete-event replay without IO: pages arrive at their home node as a Poisson process, a node ends one every 1/v seconds. Three
//! runs over the same arrivals: every page stays at home; the paper's rule (blocks of pages at intervals); Landfall's
//! own choice and passing on, the functions the scheduler calls. docs/load-levels.md says what the paper leaves open.

use std::collections::VecDeque;
use std::time::Duration;

use landfall_scheduler::model::{AgentId, Rtt, Strategy};
use landfall_scheduler::strategy::balance::{Queued, Taker, plan};
use landfall_scheduler::strategy::{Candidate, Site, choose};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Line;

/// Pages per second each node crawls.
const RATES: [f64; 8] = [0.2, 0.2, 0.05, 0.1, 0.2, 0.1, 0.1, 0.05];
/// Pages per second that arrive at each.
const ARRIVALS: [f64; 8] = [0.083, 0.08, 0.16, 0.34, 0.09, 0.083, 0.22, 0.136];
/// The paper's work areas, in pages, and its block.
const WORK_AREAS: [usize; 8] = [120, 120, 20, 20, 120, 80, 20, 20];
const BLOCK: usize = 20;
/// The paper's interval is not given: minutes.
const PAPERS_INTERVALS: [u32; 4] = [1, 2, 5, 20];
/// Landfall's is half a second; ten are as good where a page takes five to twenty.
const OUR_INTERVAL_S: f64 = 10.0;
/// Of each queue a pass of Landfall's looks at so many, as the scheduler does.
const LOOKED_AT: usize = 100;
const MOVES: usize = 200;
/// Output is compared after so many hours.
const HOURS: [u32; 4] = [1, 2, 4, 8];
const SEEDS: u64 = 5;
/// The paper's gain, at most.
const PAPER_GAIN: f64 = 33.3;

pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    let (alone, most): (f64, f64) =
        (RATES.iter().zip(ARRIVALS).map(|(rate, arrivals)| rate.min(arrivals)).sum(), RATES.iter().sum());
    let mut lines = vec![Line::plain(
        "in the long run without: pages/s; all nodes busy: pages/s; gain at most, %",
        format!("{alone:.3} {most:.3} {:+.1}", (most / alone - 1.0) * 100.0),
    )];
    let runs: Vec<Runs> = (1..=SEEDS).map(Runs::of).collect();
    let mut last = 0.0;
    for (hour, hours) in HOURS.iter().enumerate() {
        let pages = |of: &dyn Fn(&Runs) -> usize| middle(runs.iter().map(|run| share(of(run), 1)).collect());
        let gain = |of: &dyn Fn(&Runs) -> usize| {
            middle(runs.iter().map(|run| (share(of(run), run.alone[hour]) - 1.0) * 100.0).collect())
        };
        let (alone, three, all) =
            (pages(&|run| run.alone[hour]), pages(&|run| run.three[hour]), pages(&|run| run.all[hour]));
        lines.push(Line::plain(
            format!("after {hours} h, pages: without; with, gnp-top3; with, any node a candidate"),
            format!("{alone:.0} {three:.0} {all:.0}"),
        ));
        last = gain(&|run| run.all[hour]);
        lines.push(Line::plain("  gained, %", format!("{:+.1} {last:+.1}", gain(&|run| run.three[hour]))));
        let papers = (0..PAPERS_INTERVALS.len()).map(|rule| format!("{:+.1}", gain(&|run| run.papers[rule][hour])));
        lines.push(Line::plain(
            format!("  gained by the paper's rule every {PAPERS_INTERVALS:?} minutes, %"),
            papers.collect::<Vec<_>>().join(" "),
        ));
    }
    lines.push(Line::at_least("gained by load levels at last, % (the paper: up to 33.3)", last, PAPER_GAIN));
    Ok(lines)
}

/// Pages crawled by each of [`HOURS`], of the same arrivals.
struct Runs {
    alone: Vec<usize>,
    /// By the paper's rule, at each of [`PAPERS_INTERVALS`].
    papers: Vec<Vec<usize>>,
    /// By Landfall's with the three nearest as candidates.
    three: Vec<usize>,
    /// And with all nodes.
    all: Vec<usize>,
}

impl Runs {
    fn of(seed: u64) -> Self {
        let pages = arrivals(seed);
        let home = |_: &Cluster, page: &Page| page.home;
        let papers = |minutes: &u32| Cluster::new().run(&pages, f64::from(*minutes) * 60.0, home, Cluster::move_blocks);
        let ours = |strategy, count| {
            let place = |cluster: &Cluster, page: &Page| cluster.choose(page, strategy);
            Cluster::new().run(&pages, OUR_INTERVAL_S, place, |cluster| cluster.pass_on(count))
        };
        Self {
            alone: Cluster::new().run(&pages, f64::INFINITY, home, |_| {}),
            papers: PAPERS_INTERVALS.iter().map(papers).collect(),
            three: ours(Strategy::GnpTop3, 3),
            all: ours(Strategy::Random, RATES.len()),
        }
    }
}

/// A page, and the node its identifier is nearest to.
#[derive(Debug, Clone, Copy)]
struct Page {
    at: f64,
    home: usize,
    seed: u64,
}

fn arrivals(seed: u64) -> Vec<Page> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let until = f64::from(HOURS[HOURS.len() - 1]) * 3600.0;
    let mut pages = Vec::new();
    for (home, rate) in ARRIVALS.iter().enumerate() {
        let mut at = 0.0;
        loop {
            at -= (1.0 - rng.random_range(0.0..1.0_f64)).ln() / rate;
            if at > until {
                break;
            }
            pages.push(Page { at, home, seed: rng.random() });
        }
    }
    pages.sort_by(|one, other| one.at.total_cmp(&other.at));
    pages
}

/// Nodes by their distance from a home: identifiers are the numbers from 0, three bits, and distance is their XOR.
fn ranked(home: usize) -> impl Iterator<Item = usize> {
    (0..RATES.len()).map(move |distance| home ^ distance)
}

/// The nodes and what waits at each.
#[derive(Debug, Clone)]
struct Cluster {
    queues: Vec<VecDeque<Page>>,
    /// When the page under way ends; infinite while there is none.
    ends: Vec<f64>,
}

impl Cluster {
    fn new() -> Self {
        Self { queues: vec![VecDeque::new(); RATES.len()], ends: vec![f64::INFINITY; RATES.len()] }
    }

    /// Plays all arrivals; returns how many pages were crawled by each of [`HOURS`].
    fn run(
        &mut self,
        pages: &[Page],
        interval: f64,
        place: impl Fn(&Self, &Page) -> usize,
        pass: impl Fn(&mut Self),
    ) -> Vec<usize> {
        let mut crawled = Vec::new();
        let (mut done, mut next_pass) = (0, interval);
        let mut pages = pages.iter().peekable();
        let mut hours = HOURS.iter().map(|hours| f64::from(*hours) * 3600.0).peekable();
        while let Some(hour) = hours.peek().copied() {
            let arrives = pages.peek().map_or(f64::INFINITY, |page| page.at);
            let (node, ends) = self.first_end();
            let now = hour.min(arrives).min(ends).min(next_pass);
            if now >= hour {
                crawled.push(done);
                hours.next();
            } else if ends <= now {
                done += 1;
                self.ends[node] = f64::INFINITY;
            } else if arrives <= now {
                let Some(page) = pages.next() else { continue };
                let node = place(self, page);
                self.queues[node].push_back(*page);
            } else {
                pass(self);
                next_pass = now + interval;
            }
            self.begin(now);
        }
        crawled
    }

    fn first_end(&self) -> (usize, f64) {
        let ends = self.ends.iter().copied().enumerate();
        ends.min_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or((0, f64::INFINITY))
    }

    /// Idle nodes take the oldest page that waits with them.
    fn begin(&mut self, now: f64) {
        for (node, ends) in self.ends.iter_mut().enumerate() {
            if ends.is_infinite() && !self.queues[node].is_empty() {
                self.queues[node].pop_front();
                *ends = now + 1.0 / RATES[node];
            }
        }
    }

    fn candidate(&self, node: usize, distance: usize) -> Candidate {
        let load = self.queues[node].len() + usize::from(self.ends[node].is_finite());
        Candidate {
            measured: Rtt::try_from_millis_f64(1.0 + f64::from(u32::try_from(distance).unwrap_or(u32::MAX))).ok(),
            load: u32::try_from(load).unwrap_or(u32::MAX),
            pace: Duration::from_secs_f64(1.0 / RATES[node]),
            ..Candidate::new(agent(node), 1)
        }
    }

    /// Where Landfall's choice puts a page.
    fn choose(&self, page: &Page, strategy: Strategy) -> usize {
        let candidates: Vec<Candidate> =
            ranked(page.home).enumerate().map(|(distance, node)| self.candidate(node, distance)).collect();
        choose(strategy, &Site::default(), &candidates, page.seed).map_or(page.home, |choice| node(choice.agent))
    }

    /// What Landfall's balance passes on, with the `count` nearest nodes of a page as its candidates.
    fn pass_on(&mut self, count: usize) {
        let fleet: Vec<Candidate> = (0..RATES.len()).map(|node| self.candidate(node, 0)).collect();
        let (mut queued, mut places) = (Vec::new(), Vec::new());
        for (at, queue) in self.queues.iter().enumerate() {
            for (place, page) in queue.iter().enumerate().rev().take(LOOKED_AT) {
                let takers = ranked(page.home).take(count).filter(|node| *node != at);
                let takers = takers.map(|node| Taker { agent: agent(node), nearer: false }).collect();
                queued.push(Queued { at: agent(at), takers });
                places.push((at, place));
            }
        }
        let mut moves: Vec<(usize, usize, usize)> = plan(&fleet, &queued, MOVES)
            .iter()
            .map(|one| (places[one.queued].0, places[one.queued].1, node(one.to)))
            .collect();
        // From the end, so that the places before stay what they are.
        moves.sort_by_key(|(_, place, _)| std::cmp::Reverse(*place));
        let moved: Vec<(usize, Page)> = moves
            .iter()
            .map(|(at, place, to)| (*to, self.queues[*at].remove(*place)))
            .filter_map(|(to, page)| Some((to, page?)))
            .collect();
        for (to, page) in moved {
            self.queues[to].push_back(page);
        }
    }

    /// The paper's load level: blocks that do not fit into the work area, less blocks that do.
    fn level(&self, node: usize) -> f64 {
        let (waiting, area) = (self.queues[node].len(), WORK_AREAS[node]);
        share(waiting.saturating_sub(area) / BLOCK, 1) - share(area.saturating_sub(waiting), BLOCK)
    }

    /// The paper's rule (1.4.2): an overloaded node looks at its neighbours, near ones first, one region of the routing table after the
    /// other; in the first region that has room for its blocks as a whole the first node that has room for them takes them.
    fn move_blocks(&mut self) {
        let levels: Vec<f64> = (0..RATES.len()).map(|node| self.level(node)).collect();
        for from in 0..RATES.len() {
            if levels[from] <= 0.0 {
                continue;
            }
            let blocks = self.queues[from].len().saturating_sub(WORK_AREAS[from]) / BLOCK;
            for region in [1..2, 2..4, 4..8_usize] {
                let nodes: Vec<usize> = region.map(|distance| from ^ distance).collect();
                let room: f64 = nodes.iter().map(|node| levels[*node]).sum();
                let taker = nodes.iter().find(|node| levels[**node] + levels[from] < 0.0);
                if let Some(&taker) = taker.filter(|_| room + levels[from] < 0.0) {
                    let kept = self.queues[from].len() - blocks * BLOCK;
                    let moved = self.queues[from].split_off(kept);
                    self.queues[taker].extend(moved);
                    break;
                }
            }
        }
    }
}

fn agent(node: usize) -> AgentId {
    AgentId::new(i64::try_from(node).unwrap_or(i64::MAX))
}

fn node(agent: AgentId) -> usize {
    usize::try_from(agent.get()).unwrap_or(0)
}

fn share(part: usize, of: usize) -> f64 {
    let float = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    float(part) / float(of)
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_a_node_crawls_what_arrives_or_what_it_can() {
        let Runs { alone, papers, three, all } = Runs::of(1);
        let hours = HOURS.len() - 1;
        let rate = share(alone[hours], 1) / (f64::from(HOURS[hours]) * 3600.0);
        assert!((0.61..0.66).contains(&rate), "{rate} pages a second");
        for with in [&papers[0], &three, &all] {
            assert!(with[hours] > alone[hours]);
        }
        let most = RATES.iter().sum::<f64>() * f64::from(HOURS[hours]) * 3600.0;
        assert!(share(all[hours], 1) <= most + 8.0 && share(all[hours], 1) > 0.98 * most, "{all:?} of {most}");
    }

    #[test]
    fn the_level_is_negative_with_room_and_counts_blocks_beyond_the_work_area() {
        let mut cluster = Cluster::new();
        let page = Page { at: 0.0, home: 2, seed: 1 };
        assert!((cluster.level(2) + 1.0).abs() < 1e-9);
        cluster.queues[2] = vec![page; 39].into();
        assert!(cluster.level(2).abs() < 1e-9, "a block is not full yet");
        cluster.queues[2].push_back(page);
        assert!((cluster.level(2) - 1.0).abs() < 1e-9);
        cluster.move_blocks();
        assert_eq!((cluster.queues[2].len(), cluster.queues.iter().map(VecDeque::len).sum::<usize>()), (20, 40));
    }
}
