//! Chooses the points at which the search for a host's place starts.

use crate::gnp::objective::HUBER;

use super::host::{Block, Host, LANES, Point, squares};

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
