//! Gives each pair of agents that was not measured the length of the shortest chain of measurements.

/// Returns the distance of every pair, with the Floyd–Warshall algorithm. `rows` contains for each
/// agent the indices of the agents whose distance to it was measured, and these distances. The
/// distance is infinite if no chain of measurements connects a pair.
pub(super) fn fill(rows: &[Vec<(usize, f64)>]) -> Vec<Vec<f64>> {
    let count = rows.len();
    let mut filled = vec![vec![f64::INFINITY; count]; count];
    for (i, row) in rows.iter().enumerate() {
        filled[i][i] = 0.0;
        for &(j, measured) in row {
            filled[i][j] = measured;
        }
    }
    for via in 0..count {
        for i in 0..count {
            for j in 0..count {
                let chain = filled[i][via] + filled[via][j];
                if chain < filled[i][j] {
                    filled[i][j] = chain;
                }
            }
        }
    }
    for (i, row) in rows.iter().enumerate() {
        for &(j, measured) in row {
            filled[i][j] = measured;
        }
    }
    filled
}
