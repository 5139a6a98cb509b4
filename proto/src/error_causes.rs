//! Finds the causes of a failed request, which the HTTP libraries wrap in errors of their own.

use std::error::Error;
use std::iter::successors;

/// The error, its source, the source of its source, and so on.
pub fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&cause| cause.source())
}

/// The message of the last error in the chain of causes, in one line. The errors before it say only
/// "transport error".
pub fn innermost(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(|cause| cause.to_string().replace('\n', " ")).unwrap_or_default()
}
