//! Writes all pairs of a site and an agent as comma-separated rows. The report's prediction errors,
//! and the mean round trips of `random` and `gnp-topK`, can be recomputed from these rows.
//!
//! `site` and `agent` are row numbers in the matrix, from 0. A pair without a known round trip has
//! no row. For a landmark, `predicted_ms` is its measurement; for other agents, it is the map's
//! prediction. `predicted_ms` is empty if there is no prediction. `rank` is the agent's rank by
//! distance: 1 for the nearest agent, and empty if the agent's distance is unknown.

use std::io::Write;

use super::SeedResult;

const HEADER: [&str; 7] = ["seed", "site", "agent", "is_landmark", "measured_ms", "predicted_ms", "rank"];

pub fn dump(judged: &[SeedResult], out: impl Write) -> Result<(), csv::Error> {
    let mut rows = csv::Writer::from_writer(out);
    rows.write_record(HEADER)?;
    for seed in judged {
        for site in &seed.sites {
            for agent in &site.agents {
                rows.write_record([
                    seed.seed.to_string(),
                    site.node.to_string(),
                    agent.node.to_string(),
                    u8::from(agent.landmark).to_string(),
                    agent.truth.to_string(),
                    agent.predicted.map(|millis| millis.to_string()).unwrap_or_default(),
                    agent.rank.map(|rank| rank.to_string()).unwrap_or_default(),
                ])?;
            }
        }
    }
    rows.flush()?;
    Ok(())
}
