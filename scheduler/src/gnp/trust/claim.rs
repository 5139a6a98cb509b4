//! Claims: what an agent that is no landmark measured of a site, by which it may win the site.
//!
//! Whoever claims a millisecond would be chosen for every site it is asked about. So a claim is held against what the
//! landmarks measured: against light, and against what the refined map makes of it. Only what is too near is doubted: who
//! claims to be far wins nothing.

use crate::gnp::{Position, Prediction, least_round_trip};
use crate::model::Rtt;

use super::evidence::log_ratio;

/// Standard deviations of the log distance below which a claim is not believed.
const FAR: f64 = 6.0;
/// The least standard deviation assumed of a prediction: the cloud is sometimes surer than the network. With it, about
/// one honest claim in a hundred is not believed on measured matrices, and its agent ranks by its predicted distance.
const LEAST_SPREAD: f64 = 0.3;

/// Whether an agent can be as near to a site as it claims, by what is predicted for it from others' measurements.
pub fn is_near_enough(claim: Rtt, predicted: &Prediction) -> bool {
    log_ratio(predicted.median, claim) <= FAR * predicted.spread.hypot(LEAST_SPREAD)
}

/// Whether a claim and a landmark's round trip to the same site leave light the time for the way between the two.
pub fn leaves_light_time(claim: Rtt, at: Position, landmark: Rtt, landmark_at: Position) -> bool {
    claim.as_duration() + landmark.as_duration() >= least_round_trip(at, landmark_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gnp::fixture::rtt;

    #[test]
    fn a_claim_far_below_what_is_predicted_is_not_believed_and_one_above_always_is() {
        let predicted = |spread| Prediction { median: rtt(40.0), expected: rtt(42.0), spread };
        assert!(!is_near_enough(rtt(1.0), &predicted(0.1)));
        assert!(is_near_enough(rtt(10.0), &predicted(0.1)));
        assert!(is_near_enough(rtt(1.0), &predicted(0.6)), "the map does not know");
        assert!(is_near_enough(rtt(4000.0), &predicted(0.1)));
    }

    #[test]
    fn who_claims_to_be_next_to_a_site_that_is_next_to_a_far_landmark_beats_light() {
        let position = |latitude, longitude| Position::try_new(latitude, longitude).unwrap();
        let (beijing, frankfurt) = (position(39.9, 116.4), position(50.1, 8.7));
        assert!(!leaves_light_time(rtt(1.0), beijing, rtt(5.0), frankfurt));
        assert!(leaves_light_time(rtt(1.0), beijing, rtt(90.0), frankfurt));
        assert!(leaves_light_time(rtt(1.0), beijing, rtt(1.0), beijing));
    }
}
