//! One host and the agents around it: the cost that every [`Solver`](super::Solver) minimises, and
//! the local quadratic model of this cost.
//!
//! The cost of a place is the robust log error of the measurements (`objective`), plus a prior that
//! prefers places near agents:
//!
//! ```text
//! sum over measured i of huber(ln((g_i + s) / (d_i + s)))  +  P ln(1 + (rho / r)^2)
//! ```
//!
//! Here `g_i = |x - a_i| + h + h_i` is the distance from the place `x` with the height `h` to agent
//! i, which is at `a_i` with the height `h_i`. `d_i` is the measured distance, `s` the softening,
//! `P` the weight of the prior, `rho` the distance to the nearest agent, and `r` the prior's reach.
//!
//! The cost is computed a few hundred times per host, so the code is written for speed. Points are
//! on the stack, vector instructions process four agents at a time, and the number `N` of
//! components is a compile-time constant. A point has one component per dimension, then zeros up to
//! `N - 1` components, then its height. No solver changes the zeros.

#![expect(clippy::needless_range_loop, reason = "every loop runs over the same lanes of several arrays")]

use crate::gnp::objective::{HUBER, WORST, softening};

/// Number of agents in a block. Vector instructions process a block at once.
pub(super) const LANES: usize = 4;
/// Weight of the prior, in squared log errors.
pub(super) const PRIOR: f64 = 0.005;
/// The distance to the nearest agent beyond which the prior acts; a share of the median distance.
pub(super) const PRIOR_REACH: f64 = 0.1;

/// A possible place of a host: the components in use, then zeros, then the height; in milliseconds.
pub(super) type Point<const N: usize> = [f64; N];

/// The coordinates of four agents, stored component by component. Unused lanes contain infinity.
pub(super) type Block<const N: usize> = [[f64; LANES]; N];

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

/// Pads a coordinate with zeros to `N` components; the height stays last.
fn widen<const N: usize>(coordinate: &[f64], dimensions: usize) -> Point<N> {
    let mut point = [0.0; N];
    point[..dimensions].copy_from_slice(&coordinate[..dimensions]);
    point[N - 1] = coordinate[dimensions];
    point
}

/// The squared straight-line distances from a point to the agents of a block.
#[inline]
pub(super) fn squares<const N: usize>(point: &Point<N>, block: &Block<N>) -> [f64; LANES] {
    let mut squares = [0.0; LANES];
    for (row, &component) in block[..N - 1].iter().zip(point) {
        for lane in 0..LANES {
            let apart = component - row[lane];
            squares[lane] += apart * apart;
        }
    }
    squares
}

/// The agents of an embedding, and constants derived from the embedding's scale.
#[derive(Debug)]
pub(super) struct Anchorage<const N: usize> {
    pub(super) agents: Vec<Point<N>>,
    pub(super) blocks: Vec<Block<N>>,
    /// Number of dimensions in use. Further components, except the height, are zero.
    pub(super) dimensions: usize,
    /// The median distance between agents, in milliseconds.
    pub(super) scale: f64,
    pub(super) softening: f64,
    /// One over the square of the prior's reach, in 1/ms².
    per_reach: f64,
    /// The cost per measurement, in squared log errors, at or above which another start is tried.
    pub(super) restart: f64,
}

impl<const N: usize> Anchorage<N> {
    /// `agents` are the agents' coordinates: one component per dimension, then the height. `scale`
    /// is in milliseconds, `restart` in squared log errors.
    pub(super) fn new<'a>(
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
            softening: softening(scale),
            per_reach: 1.0 / (reach * reach),
            restart,
        }
    }

    pub(super) fn widen(&self, coordinate: &[f64]) -> Point<N> {
        widen(coordinate, self.dimensions)
    }

    /// Builds a host from its measurements: pairs of an agent's index and a round trip in
    /// milliseconds.
    pub(super) fn host(&self, measured: &[(usize, f64)]) -> Host<'_, N> {
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
        Host { anchorage: self, anchors: measured.chunks(LANES).map(anchor).collect(), measured: measured.to_vec() }
    }

    /// The index of the nearest agent, without heights, and the squared distance to this agent.
    #[inline]
    fn nearest(&self, point: &Point<N>) -> (usize, f64) {
        let mut nearest = [f64::INFINITY; LANES];
        let mut which = [0; LANES];
        for (index, block) in self.blocks.iter().enumerate() {
            let squares = squares(point, block);
            for lane in 0..LANES {
                // The loop has no branches, so that it compiles to vector instructions.
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

/// Up to four agents that measured a host, and their measurements.
#[derive(Debug)]
pub(super) struct Anchors<const N: usize> {
    pub(super) at: Block<N>,
    /// The measured distances, in milliseconds.
    pub(super) measured: [f64; LANES],
    /// `ln(measured + softening)`.
    log: [f64; LANES],
    /// Number of lanes in use, counted from the first.
    pub(super) count: usize,
}

/// The distances from a place to up to four anchors, and the errors of these distances.
#[derive(Debug, Clone, Copy, Default)]
struct Errors {
    /// The straight-line distance, in milliseconds.
    line: [f64; LANES],
    /// The computed distance plus the softening, in milliseconds.
    computed: [f64; LANES],
    /// The log error; 0 in unused lanes.
    error: [f64; LANES],
}

/// The distances from which the cost of a place is computed.
#[derive(Debug)]
pub(super) struct View {
    errors: Vec<Errors>,
    /// The index of the nearest agent.
    nearest: usize,
    /// The squared distance to the nearest agent, in ms².
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

    /// The sum of the Huber losses.
    #[inline]
    fn loss(&self, errors: &Errors) -> f64 {
        let mut losses = [0.0; LANES];
        for lane in 0..LANES {
            let size = errors.error[lane].abs();
            let near = if size < HUBER { size } else { HUBER };
            // The square of the error up to the limit, plus a linear part beyond the limit.
            losses[lane] = near * near + 2.0 * HUBER * (size - near);
        }
        losses.iter().sum()
    }
}

#[derive(Debug)]
pub(super) struct Host<'a, const N: usize> {
    pub(super) anchorage: &'a Anchorage<N>,
    pub(super) anchors: Vec<Anchors<N>>,
    /// Pairs of an agent's index and a round trip in milliseconds.
    pub(super) measured: Vec<(usize, f64)>,
}

/// A quadratic upper bound of the cost that equals the cost at one place. The fields are half the
/// gradient and half the second derivative of the bound.
#[derive(Debug)]
pub(super) struct Model<const N: usize> {
    pub(super) gradient: [f64; N],
    /// Only the lower triangle is used.
    pub(super) curvature: [[f64; N]; N],
}

impl<const N: usize> Default for Model<N> {
    fn default() -> Self {
        Self { gradient: [0.0; N], curvature: [[0.0; N]; N] }
    }
}

impl<const N: usize> Host<'_, N> {
    /// The cost of a place; always finite.
    #[inline]
    pub(super) fn cost(&self, point: &Point<N>) -> f64 {
        let sum = self.anchors.iter().map(|one| one.loss(&one.errors(point, self.anchorage.softening))).sum();
        self.with_prior(sum, self.anchorage.nearest(point).1)
    }

    /// Returns the cost of a place, and stores the place's distances and errors in `view`.
    #[inline]
    pub(super) fn examine(&self, point: &Point<N>, view: &mut View) -> f64 {
        let mut sum = 0.0;
        for (anchors, errors) in self.anchors.iter().zip(&mut view.errors) {
            *errors = anchors.errors(point, self.anchorage.softening);
            sum += anchors.loss(errors);
        }
        (view.nearest, view.square) = self.anchorage.nearest(point);
        self.with_prior(sum, view.square)
    }

    #[inline]
    fn with_prior(&self, sum: f64, square: f64) -> f64 {
        let cost = sum + PRIOR * (square * self.anchorage.per_reach).ln_1p();
        if cost < WORST { cost } else { WORST }
    }

    /// Returns a buffer for [`Host::examine`].
    pub(super) fn view(&self) -> View {
        View { errors: vec![Errors::default(); self.anchors.len()], nearest: 0, square: 0.0 }
    }

    /// Computes the model at a place, from the place's `view`, into `model`.
    ///
    /// Each part of the cost has a quadratic upper bound that equals the part at this place:
    ///
    /// - Huber's loss of an error `e` has a bound with the weight `w = min(1, HUBER / |e|)`
    ///   (iteratively reweighted least squares). The error is linearised (Gauss and Newton).
    /// - The prior has a bound with the weight `P / (r^2 + rho^2)`, centred at the nearest agent.
    /// - The straight-line part `l` of the distance `g` has a kink at an anchor. If `g` exceeds the
    ///   measurement, so that `e` is positive, `l` is bounded by a quadratic of the weight
    ///   `w e / (g l)` (Weiszfeld). Without this bound, every step would overshoot a near anchor.
    pub(super) fn model(&self, point: &Point<N>, view: &View, model: &mut Model<N>) {
        *model = Model::default();
        let nearest = &self.anchorage.agents[view.nearest];
        let mut round = PRIOR * self.anchorage.per_reach / (1.0 + view.square * self.anchorage.per_reach);
        for axis in 0..N - 1 {
            model.gradient[axis] = round * (point[axis] - nearest[axis]);
        }
        for (anchors, errors) in self.anchors.iter().zip(&view.errors) {
            for lane in 0..anchors.count {
                let (line, computed, error) = (errors.line[lane], errors.computed[lane], errors.error[lane]);
                let weight = HUBER / error.abs().max(HUBER);
                let mut slope = [0.0; N];
                // At the anchor itself, the direction is undefined, so only the height has a slope.
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

    pub(super) fn anchors(&self) -> f64 {
        self.measured.iter().map(|_| 1.0).sum()
    }

    /// Root mean square of the relative errors at a place.
    pub(super) fn fit_error(&self, point: &Point<N>) -> f64 {
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
