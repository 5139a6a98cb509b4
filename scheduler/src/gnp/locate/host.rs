//! One host against hosts that stand still: the cost that both solvers lower, its linear model, and where they start.
//!
//! The cost of a place is the robust log error against what was measured (`objective`), plus a prior that says that hosts
//! lie where agents do:
//!
//! ```text
//! sum over measured i of huber(ln((g_i + s) / (d_i + s)))  +  P ln(1 + (rho / r)^2)
//! ```
//!
//! with `g_i = |x - a_i| + h + h_i`, `rho` the distance to the nearest agent's position and `r` the prior's reach. It is
//! evaluated some hundred times a host, so everything is on the stack, lies component by component in lanes that
//! compile to vector instructions, and `N`, the components of a point, is known when compiled. A point has its
//! dimensions first, then zeros that no solver moves where the embedding has fewer, then its height.

#![expect(clippy::needless_range_loop, reason = "every loop runs over the same lanes of several arrays")]

use crate::gnp::objective::{HUBER, WORST};

/// Hosts side by side in a block.
pub(in crate::gnp) const LANES: usize = 4;
/// Weight of the prior in units of a squared log error.
const PRIOR: f64 = 0.005;
/// Distance to the nearest agent beyond which the prior begins to pull, as a part of the scale.
const PRIOR_REACH: f64 = 0.1;

/// Where a host may be.
pub(in crate::gnp) type Point<const N: usize> = [f64; N];

/// Four hosts: component by component. Lanes that stand for nobody are infinitely far.
pub(in crate::gnp) type Block<const N: usize> = [[f64; LANES]; N];

/// Hosts in blocks, heights among their components.
fn blocks<const N: usize>(points: &[Point<N>]) -> Vec<Block<N>> {
    let block = |points: &[Point<N>]| {
        let mut block = [[f64::INFINITY; LANES]; N];
        for (lane, point) in points.iter().enumerate() {
            for (row, &component) in block.iter_mut().zip(point) {
                row[lane] = component;
            }
        }
        block
    };
    points.chunks(LANES).map(block).collect()
}

/// A coordinate of as many dimensions as a point.
fn widen<const N: usize>(coordinate: &[f64], dimensions: usize) -> Point<N> {
    let mut point = [0.0; N];
    point[..dimensions].copy_from_slice(&coordinate[..dimensions]);
    point[N - 1] = coordinate[dimensions];
    point
}

/// Squares of the straight lines from a point to the hosts of a block.
#[inline]
pub(in crate::gnp) fn squares<const N: usize>(point: &Point<N>, block: &Block<N>) -> [f64; LANES] {
    let mut squares = [0.0; LANES];
    for (row, &component) in block[..N - 1].iter().zip(point) {
        for lane in 0..LANES {
            let apart = component - row[lane];
            squares[lane] += apart * apart;
        }
    }
    squares
}

/// The agents of an embedding, and what follows from its scale.
#[derive(Debug)]
pub(in crate::gnp) struct Ground<const N: usize> {
    agents: Vec<Point<N>>,
    pub(in crate::gnp) blocks: Vec<Block<N>>,
    /// Dimensions in use: those beyond are zero everywhere.
    pub(in crate::gnp) dimensions: usize,
    /// Milliseconds.
    pub(in crate::gnp) scale: f64,
    softening: f64,
    /// One over the square of the prior's reach.
    per_reach: f64,
    /// A cost for each measurement from which another start is worth its time, in squared log errors.
    pub(in crate::gnp) restart: f64,
}

impl<const N: usize> Ground<N> {
    /// The agents' coordinates, each a component a dimension and the height. `scale` is in milliseconds, `restart` in squared log errors.
    pub(in crate::gnp) fn new<'a>(
        agents: impl Iterator<Item = &'a [f64]>,
        dimensions: usize,
        scale: f64,
        restart: f64,
    ) -> Self {
        let agents: Vec<Point<N>> = agents.map(|coordinate| widen(coordinate, dimensions)).collect();
        let reach = PRIOR_REACH * scale;
        Self {
            blocks: blocks(&agents),
            agents,
            dimensions,
            scale,
            softening: crate::gnp::softening(scale),
            per_reach: 1.0 / (reach * reach),
            restart,
        }
    }

    /// A coordinate of this ground's embedding as a point.
    pub(in crate::gnp) fn widen(&self, coordinate: &[f64]) -> Point<N> {
        widen(coordinate, self.dimensions)
    }

    /// A host that these agents, by their number, measured; milliseconds.
    pub(in crate::gnp) fn host(&self, measured: &[(usize, f64)]) -> Host<'_, N> {
        let anchor = |four: &[(usize, f64)]| {
            let mut anchors =
                Anchors { at: [[0.0; LANES]; N], measured: [1.0; LANES], log: [0.0; LANES], count: four.len() };
            for (lane, &(agent, measured)) in four.iter().enumerate() {
                for (row, component) in anchors.at.iter_mut().zip(self.agents[agent]) {
                    row[lane] = component;
                }
                anchors.measured[lane] = measured;
                anchors.log[lane] = (measured + self.softening).ln();
            }
            anchors
        };
        Host { ground: self, anchors: measured.chunks(LANES).map(anchor).collect(), measured: measured.to_vec() }
    }

    /// The agent whose position is nearest, by number, and the square of the distance to it.
    #[inline]
    fn nearest(&self, point: &Point<N>) -> (usize, f64) {
        let mut nearest = [f64::INFINITY; LANES];
        let mut which = [0; LANES];
        for (index, block) in self.blocks.iter().enumerate() {
            let squares = squares(point, block);
            for lane in 0..LANES {
                // Plain selections, which compile to a comparison and a mask.
                let nearer = squares[lane] < nearest[lane];
                nearest[lane] = if nearer { squares[lane] } else { nearest[lane] };
                which[lane] = if nearer { index } else { which[lane] };
            }
        }
        let mut best = 0;
        for lane in 1..LANES {
            if nearest[lane] < nearest[best] {
                best = lane;
            }
        }
        (which[best] * LANES + best, nearest[best])
    }
}

/// Up to four of a host's anchors: where they are and what they measured.
#[derive(Debug)]
struct Anchors<const N: usize> {
    at: Block<N>,
    /// Milliseconds.
    measured: [f64; LANES],
    /// `ln(measured + softening)`.
    log: [f64; LANES],
    /// Lanes that stand for somebody; the first.
    count: usize,
}

/// How far a place is from up to four anchors.
#[derive(Debug, Clone, Copy, Default)]
struct Errors {
    /// The straight line, milliseconds.
    line: [f64; LANES],
    /// The computed distance and the softening, milliseconds.
    computed: [f64; LANES],
    /// The log error; 0 in lanes that stand for nobody.
    error: [f64; LANES],
}

/// What a host sees from a place.
#[derive(Debug)]
pub(in crate::gnp) struct View {
    errors: Vec<Errors>,
    /// The agent nearest to the place, by number.
    nearest: usize,
    /// The square of the distance to it.
    square: f64,
}

impl<const N: usize> Anchors<N> {
    #[inline]
    fn errors(&self, point: &Point<N>, softening: f64) -> Errors {
        let mut errors = Errors { line: squares(point, &self.at), ..Errors::default() };
        let own = point[N - 1].abs() + softening;
        for lane in 0..LANES {
            errors.line[lane] = errors.line[lane].sqrt();
            errors.computed[lane] = errors.line[lane] + self.at[N - 1][lane] + own;
        }
        for lane in 0..self.count {
            errors.error[lane] = errors.computed[lane].ln() - self.log[lane];
        }
        errors
    }

    /// Huber's loss of each, summed.
    #[inline]
    fn loss(&self, errors: &Errors) -> f64 {
        let mut losses = [0.0; LANES];
        for lane in 0..LANES {
            let size = errors.error[lane].abs();
            let near = if size < HUBER { size } else { HUBER };
            // Without a branch: the square of the near part, and a line for the rest.
            losses[lane] = near * near + 2.0 * HUBER * (size - near);
        }
        losses.iter().sum()
    }
}

/// One host: the ground it is placed on and what was measured.
#[derive(Debug)]
pub(in crate::gnp) struct Host<'a, const N: usize> {
    pub(in crate::gnp) ground: &'a Ground<N>,
    anchors: Vec<Anchors<N>>,
    /// Agents that measured it, by number, and the milliseconds.
    measured: Vec<(usize, f64)>,
}

/// The quadratic that touches the cost at a place from above: its half gradient, and half of its second derivative.
#[derive(Debug)]
pub(in crate::gnp) struct Model<const N: usize> {
    pub(in crate::gnp) gradient: [f64; N],
    pub(in crate::gnp) curvature: [[f64; N]; N],
}

impl<const N: usize> Default for Model<N> {
    fn default() -> Self {
        Self { gradient: [0.0; N], curvature: [[0.0; N]; N] }
    }
}

impl<const N: usize> Host<'_, N> {
    /// The cost of a place; finite whatever the place.
    #[inline]
    pub(in crate::gnp) fn cost(&self, point: &Point<N>) -> f64 {
        let sum = self.anchors.iter().map(|anchors| anchors.loss(&anchors.errors(point, self.ground.softening))).sum();
        self.with_prior(sum, self.ground.nearest(point).1)
    }

    /// The cost of a place, and what it is made of, which [`Host::model`] wants again.
    #[inline]
    pub(in crate::gnp) fn examine(&self, point: &Point<N>, view: &mut View) -> f64 {
        let mut sum = 0.0;
        for (anchors, errors) in self.anchors.iter().zip(&mut view.errors) {
            *errors = anchors.errors(point, self.ground.softening);
            sum += anchors.loss(errors);
        }
        (view.nearest, view.square) = self.ground.nearest(point);
        self.with_prior(sum, view.square)
    }

    #[inline]
    fn with_prior(&self, sum: f64, square: f64) -> f64 {
        let cost = sum + PRIOR * (square * self.ground.per_reach).ln_1p();
        if cost < WORST { cost } else { WORST }
    }

    /// Room for [`Host::examine`].
    pub(in crate::gnp) fn view(&self) -> View {
        View { errors: vec![Errors::default(); self.anchors.len()], nearest: 0, square: 0.0 }
    }

    /// Puts the model at a place, seen from there, into `model`.
    ///
    /// Huber's loss lies below the square that touches it with weight `w = min(1, HUBER / |e|)` (iteratively
    /// reweighted least squares), the prior below the square with weight `P / (r^2 + rho^2)` around the agent that is
    /// nearest there, and the error is taken as linear (Gauss and Newton), but for the kink that the distance has at an
    /// anchor: where the computed distance is too long, the straight line `l` itself lies below the square with weight
    /// `w e / (g l)` (Weiszfeld), without which every step overshoots an anchor that the host is close to.
    pub(in crate::gnp) fn model(&self, point: &Point<N>, view: &View, model: &mut Model<N>) {
        *model = Model::default();
        let nearest = &self.ground.agents[view.nearest];
        let mut round = PRIOR * self.ground.per_reach / (1.0 + view.square * self.ground.per_reach);
        for axis in 0..N - 1 {
            model.gradient[axis] = round * (point[axis] - nearest[axis]);
        }
        for (anchors, errors) in self.anchors.iter().zip(&view.errors) {
            for lane in 0..anchors.count {
                let (line, computed, error) = (errors.line[lane], errors.computed[lane], errors.error[lane]);
                let weight = HUBER / error.abs().max(HUBER);
                let mut slope = [0.0; N];
                // On top of an anchor no direction is away from it.
                if line > 0.0 {
                    let per_line = 1.0 / (line * computed);
                    for axis in 0..N - 1 {
                        slope[axis] = (point[axis] - anchors.at[axis][lane]) * per_line;
                    }
                    round += weight * error.max(0.0) * per_line;
                }
                slope[N - 1] = 1.0 / computed;
                for row in 0..N {
                    let part = weight * slope[row];
                    model.gradient[row] += part * error;
                    for column in 0..=row {
                        model.curvature[row][column] += part * slope[column];
                    }
                }
            }
        }
        for axis in 0..N - 1 {
            model.curvature[axis][axis] += round;
        }
    }

    /// How many measurements.
    pub(in crate::gnp) fn anchors(&self) -> f64 {
        self.measured.iter().map(|_| 1.0).sum()
    }

    /// The `K` agents whose position, with the height left over, explains the measurements best; best first. There are
    /// fewer where the embedding has fewer agents, and then the best stands again in their place.
    pub(in crate::gnp) fn starts<const K: usize>(&self) -> [Point<N>; K] {
        let mut best = [(f64::INFINITY, 0); K];
        let mut lines = vec![[0.0; LANES]; self.measured.len()];
        for (index, block) in self.ground.blocks.iter().enumerate() {
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

    /// How badly the positions of four agents explain the measurements, each with the height that is left over in the mean.
    /// The log error is replaced by the first term of its series in `(g - d) / (g + d)`: this only ranks. `lines` is room.
    fn misfits(&self, agents: &Block<N>, lines: &mut [[f64; LANES]]) -> [f64; LANES] {
        let mut heights = [0.0; LANES];
        for (&(anchor, measured), lines) in self.measured.iter().zip(lines.iter_mut()) {
            let anchor = &self.ground.agents[anchor];
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
                let size = (2.0 * (computed - measured) / (computed + measured + 2.0 * self.ground.softening)).abs();
                let near = if size < HUBER { size } else { HUBER };
                misfits[lane] += near * near + 2.0 * HUBER * (size - near);
            }
        }
        misfits
    }

    /// An agent's position with the median of the heights that are left over.
    fn beside(&self, agent: usize) -> Point<N> {
        let mut point = self.ground.agents[agent];
        let mut left: Vec<f64> = Vec::with_capacity(self.measured.len());
        for anchors in &self.anchors {
            let squares = squares(&point, &anchors.at);
            left.extend((0..anchors.count).map(|i| anchors.measured[i] - squares[i].sqrt() - anchors.at[N - 1][i]));
        }
        left.sort_unstable_by(f64::total_cmp);
        point[N - 1] = left.get(left.len() / 2).map_or(0.0, |height| height.max(0.0));
        point
    }

    /// Root mean square of the relative errors at a place.
    pub(in crate::gnp) fn fit_error(&self, point: &Point<N>) -> f64 {
        let mut sum = 0.0;
        for anchors in &self.anchors {
            let squares = squares(point, &anchors.at);
            for lane in 0..anchors.count {
                let computed = squares[lane].sqrt() + anchors.at[N - 1][lane] + point[N - 1].abs();
                let error = (computed - anchors.measured[lane]) / anchors.measured[lane];
                sum += error * error;
            }
        }
        (sum / self.anchors().max(1.0)).sqrt()
    }
}
