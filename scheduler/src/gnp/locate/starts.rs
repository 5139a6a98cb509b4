//! Chooses the points at which the search for a host's place starts, and decides how many starts
//! are tried.

use crate::gnp::objective::{Anchor, HUBER};

use super::host_cost::{Block, Host, LANES, Point, squares};

/// Maximum number of agents at whose points the search starts.
const STARTS: usize = 3;
/// Maximum number of starts in a map that explains its own measurements well. If a host's error is
/// nevertheless large, the search failed, not the map, so more starts are tried.
const EXACT_STARTS: usize = 8;
/// The cost per measurement, in squared log errors, at or above which another start is tried. An
/// error of about 20 % has this cost.
pub(super) const RESTART: f64 = 0.03;
/// In a map with a small fit error, another start is tried if the host's error reaches this
/// multiple of the fit error. In such a map, an error that would be usual in other maps is a sign
/// of a failed search.
const RESTART_FIT_ERRORS: f64 = 3.0;
/// Lower bound of the threshold computed from [`RESTART_FIT_ERRORS`]: the cost of an error of 5 %.
/// An error of 5 % does not change the choice of an agent.
const LEAST_RESTART: f64 = 0.0025;
/// Maximum number of anchors at which the search with any switches starts, the nearest first.
const MOST_ANCHORS: usize = 9;

/// The cost per measurement, in squared log errors, at or above which another start is tried in a
/// map with this fit error.
pub(super) fn restart_cost(fit_error: f64) -> f64 {
    (RESTART_FIT_ERRORS * fit_error).powi(2).clamp(LEAST_RESTART, RESTART)
}

/// Solves from the likeliest start, then from further starts until the result explains the
/// measurements well.
pub(super) fn best_of<const N: usize, E>(
    host: &Host<'_, N>,
    solve: impl Fn(&Point<N>) -> Result<(Point<N>, f64), E>,
) -> Result<(Point<N>, f64), E> {
    let [first, others @ ..] = host.starts::<STARTS>();
    let mut best = solve(&first)?;
    let enough = host.anchorage.restart * host.anchors();
    let lower = |best: &mut (Point<N>, f64), starts: &[Point<N>]| -> Result<(), E> {
        for start in starts {
            if best.1 < enough {
                break;
            }
            let found = solve(start)?;
            if found.1 < best.1 {
                *best = found;
            }
        }
        Ok(())
    };
    lower(&mut best, &others)?;
    // Ranking `EXACT_STARTS` starts is expensive, so it is done only if the first starts fail.
    if best.1 >= enough && host.anchorage.restart < RESTART {
        lower(&mut best, &host.starts::<EXACT_STARTS>()[STARTS..])?;
    }
    Ok(best)
}

/// The starts of a search with any switches: the coordinates of the nearest anchors.
pub(super) fn nearest_anchors<'a>(anchors: &[Anchor<'a>]) -> impl Iterator<Item = &'a [f64]> {
    let mut nearest: Vec<Anchor<'a>> = anchors.to_vec();
    nearest.sort_by(|a, b| a.measured.total_cmp(&b.measured));
    nearest.into_iter().take(MOST_ANCHORS).map(|anchor| anchor.coordinate)
}

impl<const N: usize> Host<'_, N> {
    /// The points of the `K` agents that explain the measurements best, with new heights, the best
    /// first. If there are fewer than `K` agents, the best start fills the other entries.
    pub(super) fn starts<const K: usize>(&self) -> [Point<N>; K] {
        let mut best = [(f64::INFINITY, 0); K];
        let mut lines = vec![[0.0; LANES]; self.measured.len()];
        for (index, block) in self.anchorage.blocks.iter().enumerate() {
            for (lane, misfit) in self.misfits(block, &mut lines).into_iter().enumerate() {
                if misfit < best[K - 1].0 {
                    best[K - 1] = (misfit, index * LANES + lane);
                    for place in (1..K).rev() {
                        if best[place].0 < best[place - 1].0 {
                            best.swap(place, place - 1);
                        }
                    }
                }
            }
        }
        best.map(|found| self.beside(if found.0.is_finite() { found.1 } else { best[0].1 }))
    }

    /// How badly the points of four agents explain the measurements. Each point gets a height of at
    /// least 0: the mean, over the measurements, of the height at which the computed distance
    /// equals the measured distance. `lines` is a buffer for distances.
    ///
    /// The log error is approximated by the first term of its series in `(g - d) / (g + d)`, which
    /// is precise enough for ranking. `g` is the computed and `d` the measured distance, each plus
    /// the softening.
    fn misfits(&self, agents: &Block<N>, lines: &mut [[f64; LANES]]) -> [f64; LANES] {
        let mut heights = [0.0; LANES];
        for (&(anchor, measured), lines) in self.measured.iter().zip(lines.iter_mut()) {
            let anchor = &self.anchorage.agents[anchor];
            *lines = squares(anchor, agents);
            for lane in 0..LANES {
                lines[lane] = lines[lane].sqrt() + anchor[N - 1];
                heights[lane] += measured - lines[lane];
            }
        }
        let share = 1.0 / self.anchors();
        for height in &mut heights {
            *height = if *height > 0.0 { *height * share } else { 0.0 };
        }
        let mut misfits = [0.0; LANES];
        for (&(_, measured), lines) in self.measured.iter().zip(lines.iter()) {
            for lane in 0..LANES {
                let computed = lines[lane] + heights[lane];
                let size = (2.0 * (computed - measured) / (computed + measured + 2.0 * self.anchorage.softening)).abs();
                let near = if size < HUBER { size } else { HUBER };
                misfits[lane] += near * near + 2.0 * HUBER * (size - near);
            }
        }
        misfits
    }

    /// A start at an agent's point. The height is the median, over the measurements, of the height
    /// at which the computed distance equals the measured distance, or 0 if the median is negative.
    fn beside(&self, agent: usize) -> Point<N> {
        let mut point = self.anchorage.agents[agent];
        let mut left: Vec<f64> = Vec::with_capacity(self.measured.len());
        for anchors in &self.anchors {
            let squares = squares(&point, &anchors.at);
            left.extend((0..anchors.count).map(|i| anchors.measured[i] - squares[i].sqrt() - anchors.at[N - 1][i]));
        }
        left.sort_unstable_by(f64::total_cmp);
        point[N - 1] = left.get(left.len() / 2).map_or(0.0, |height| height.max(0.0));
        point
    }
}
