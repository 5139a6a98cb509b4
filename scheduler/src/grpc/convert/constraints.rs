//! Constraints, from operators and to them.

use landfall_proto::v1;

use crate::constraints::{Constraints, ConstraintsRequest, Unmet};

use super::InvalidField;

/// What is asked of the agents, each value within its bounds.
pub(in crate::grpc) fn request(asked: v1::Constraints) -> Result<ConstraintsRequest, InvalidField> {
    let unmet = match v1::Unmet::try_from(asked.unmet) {
        Ok(v1::Unmet::Unspecified) => None,
        Ok(v1::Unmet::Wait) => Some(Unmet::Wait),
        Ok(v1::Unmet::Fail) => Some(Unmet::Fail),
        Err(_) => return Err(InvalidField::new("constraints.unmet", "neither wait nor fail")),
    };
    let request = ConstraintsRequest {
        countries: asked.countries,
        carriers: asked.carriers,
        tags: asked.tags,
        bytes_per_day: asked.bytes_per_day,
        unmet,
    };
    request.checked().map_err(|error| InvalidField::new(format!("constraints.{}", error.field), error.problem))
}

/// Whole constraints, for the wire.
pub(in crate::grpc) fn message(constraints: Constraints) -> v1::Constraints {
    let unmet = match constraints.unmet {
        Unmet::Wait => v1::Unmet::Wait,
        Unmet::Fail => v1::Unmet::Fail,
    };
    v1::Constraints {
        countries: constraints.countries,
        carriers: constraints.carriers,
        tags: constraints.tags,
        bytes_per_day: constraints.bytes_per_day,
        unmet: unmet.into(),
    }
}
