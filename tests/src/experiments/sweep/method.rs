//! The methods that crawl the sites of a cell, and their names.

use landfall_scheduler::model::Strategy;

/// The name of the method that crawls the sites a second time with `earliest-finish` and the
/// history of the first crawl.
pub(super) const AGAIN: &str = "earliest-finish, again";
/// The name of the method [`Method::List`]: a list scheduler that knows every round trip, link rate
/// and page size in advance.
pub(super) const LIST: &str = "list, all known";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// A first crawl of the sites with a strategy.
    First(Strategy),
    /// A second crawl of the sites with `earliest-finish`.
    Again,
    List,
}

/// The methods for each cell. `Again` and `List` are included only if `strategies` contains
/// `earliest-finish`.
pub(super) fn methods(strategies: &[Strategy]) -> Vec<Method> {
    let ours = strategies.contains(&Strategy::EarliestFinish);
    let others = [Method::Again, Method::List].into_iter().filter(|_| ours);
    strategies.iter().copied().map(Method::First).chain(others).collect()
}

impl Method {
    pub(super) fn name(self) -> String {
        match self {
            Self::First(strategy) => strategy.to_string(),
            Self::Again => AGAIN.to_owned(),
            Self::List => LIST.to_owned(),
        }
    }
}
