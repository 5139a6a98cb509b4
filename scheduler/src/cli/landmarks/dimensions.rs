//! Refuses a map with more dimensions than its landmarks can span.

use crate::app::exit::usage;

/// Converts the number of dimensions for the request, in which 0 means the default. Refuses more
/// dimensions than the landmarks can span.
pub(super) fn dimensions(asked: Option<u32>, landmarks: usize) -> anyhow::Result<u32> {
    let Some(asked) = asked else { return Ok(0) };
    let most = landmarks.saturating_sub(1);
    if usize::try_from(asked)? > most {
        let s = if landmarks == 1 { "" } else { "s" };
        return Err(usage(format!("--dims {asked} is too many for {landmarks} landmark{s}: give at most {most}")));
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_dimensions_than_landmarks_span_are_refused() {
        assert_eq!(dimensions(None, 9).unwrap(), 0);
        assert_eq!(dimensions(Some(8), 9).unwrap(), 8);
        let refused = dimensions(Some(12), 9).unwrap_err().to_string();
        assert_eq!(refused, "--dims 12 is too many for 9 landmarks: give at most 8");
    }
}
