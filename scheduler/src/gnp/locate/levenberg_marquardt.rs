//! Locates one host by the Levenberg-Marquardt method. This method is used to locate many hosts at
//! once.
//!
//! Sources: Levenberg, "A method for the solution of certain non-linear problems in least squares",
//! 1944; Marquardt, "An algorithm for least-squares estimation of nonlinear parameters", 1963.
//!
//! Each step goes to the minimum of the quadratic model [`Host::model`], after the diagonal of the
//! model's curvature has been multiplied by 1 plus the damping. The damping falls after a
//! successful step and rises after a failed step. A step that would make the height negative sets
//! the height to zero. If the height is zero and its gradient is positive, the step does not change
//! the height.

use super::host_cost::{Host, Model, Point};

/// Maximum number of steps, successful or not.
const MOST_STEPS: usize = 40;
/// The search ends after a step that lowers the cost by less than this share.
const CONVERGED: f64 = 1e-3;
/// The damping of the first step, as a share of the curvature's diagonal.
const DAMPING: f64 = 1e-3;
/// The factors by which the damping is multiplied after a successful and after a failed step.
const LOOSEN: f64 = 0.2;
const TIGHTEN: f64 = 4.0;
/// The search ends above this damping, because then no step can be expected to succeed.
const MOST_DAMPING: f64 = 1e6;

/// Returns the local minimum reached from `start` and its cost, which never exceeds the cost of
/// `start`.
pub(super) fn descend<const N: usize>(host: &Host<'_, N>, start: &Point<N>) -> (Point<N>, f64) {
    let mut point = *start;
    let mut view = host.view();
    let mut cost = host.examine(&point, &mut view);
    let mut model = Model::default();
    host.model(&point, &view, &mut model);
    let mut damping = DAMPING;
    for _ in 0..MOST_STEPS {
        let pinned = point[N - 1] <= 0.0 && model.gradient[N - 1] > 0.0;
        let step = solve(&model, damping, pinned);
        let mut next = point;
        for (component, change) in next.iter_mut().zip(step) {
            *component -= change;
        }
        next[N - 1] = next[N - 1].max(0.0);
        let lower = host.examine(&next, &mut view);
        if lower < cost {
            let gain = cost - lower;
            point = next;
            cost = lower;
            damping *= LOOSEN;
            if gain < CONVERGED * lower {
                break;
            }
            host.model(&point, &view, &mut model);
        } else {
            damping *= TIGHTEN;
            if damping > MOST_DAMPING {
                break;
            }
        }
    }
    (point, cost)
}

/// Solves `(C + damping diag(C)) step = gradient`, where `C` is the curvature, by the root-free
/// Cholesky decomposition `L D L'`. If `pinned` is true, the height does not change.
///
/// A component without curvature does not move. The components that pad the point beyond the
/// embedding's dimensions have no curvature.
fn solve<const N: usize>(model: &Model<N>, damping: f64, pinned: bool) -> [f64; N] {
    let mut lower = model.curvature;
    let mut step = model.gradient;
    if pinned {
        for row in &mut lower {
            row[N - 1] = 0.0;
        }
        lower[N - 1] = [0.0; N];
        step[N - 1] = 0.0;
    }
    let mut inverse = [0.0; N];
    for column in 0..N {
        let mut pivot = lower[column][column] * (1.0 + damping);
        for k in 0..column {
            pivot -= lower[column][k] * lower[column][k] * inverse[k];
        }
        let usable = pivot > f64::MIN_POSITIVE;
        inverse[column] = if usable { 1.0 / pivot } else { 0.0 };
        for row in column + 1..N {
            let mut entry = lower[row][column];
            for k in 0..column {
                entry -= lower[row][k] * lower[column][k] * inverse[k];
            }
            lower[row][column] = if usable { entry } else { 0.0 };
        }
    }
    // Below the diagonal, `lower` now contains the product `L D`.
    for row in 0..N {
        for k in 0..row {
            step[row] -= lower[row][k] * inverse[k] * step[k];
        }
    }
    for row in (0..N).rev() {
        step[row] *= inverse[row];
        for k in row + 1..N {
            step[row] -= lower[k][row] * inverse[row] * step[k];
        }
    }
    step
}
