//! Parses flags that accept one of several words.

use clap::builder::{PossibleValuesParser, TypedValueParser};

pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    all: impl IntoIterator<Item = T>,
    word: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let all: Vec<T> = all.into_iter().collect();
    PossibleValuesParser::new(all.iter().map(|one| word(*one)))
        .map(move |said| all.iter().copied().find(|one| word(*one) == said).expect("a possible value"))
}
