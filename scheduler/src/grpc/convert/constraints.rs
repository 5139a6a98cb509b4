//! Constraints, from operators and to them.

use landfall_proto::v1;

use crate::constraints::{ConstraintsRequest, Unmet};

use super::InvalidField;

impl TryFrom<v1::Constraints> for ConstraintsRequest {
    type Error = InvalidField;

    /// Each value is within its bounds.
    fn try_from(asked: v1::Constraints) -> Result<Self, InvalidField> {
        let unmet = match v1::Unmet::try_from(asked.unmet) {
            Ok(unmet) => Unmet::try_from(unmet).ok(),
            Err(_) => return Err(InvalidField::new("constraints.unmet", "neither wait nor fail")),
        };
        let v1::Constraints { countries, carriers, tags, bytes_per_day, .. } = asked;
        let request = Self { countries, carriers, tags, bytes_per_day, unmet };
        request.checked().map_err(InvalidField::within("constraints"))
    }
}

/// What is asked of the agents, or whole constraints.
impl From<ConstraintsRequest> for v1::Constraints {
    fn from(asked: ConstraintsRequest) -> Self {
        let unmet = asked.unmet.map_or(v1::Unmet::Unspecified, Into::into);
        let ConstraintsRequest { countries, carriers, tags, bytes_per_day, .. } = asked;
        Self { countries, carriers, tags, bytes_per_day, unmet: unmet.into() }
    }
}
