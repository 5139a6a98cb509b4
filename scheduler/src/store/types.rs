//! The Rust types of the schema's columns. The file `sqlx.toml` maps columns to them.
//!
//! Columns store round trips and their spreads in microseconds, and other durations in
//! milliseconds. Statements take and compute durations as `interval`. Reading an invalid value is
//! an error.

use std::time::Duration;

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::PgInterval;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef};
use sqlx::types::Json;
use sqlx::{Decode, Encode, Postgres, Type, TypeInfo, ValueRef};

use crate::model::constraints::{Constraints, ExcludedAgents};
use crate::model::{
    AgentId, AssignmentId, BatchId, ChoiceReasons, CrawlPolicy, EmbeddingEpoch, HistoryId, Incarnation, LeaseToken,
    OrderId, Rtt, SchedulerId, SessionId, SiteId, TaskId, TermNumber,
};

/// Stores a type as a `bigint`. The first function converts the stored number to the type; the
/// second does the reverse.
macro_rules! as_bigint {
    ($($type:ty: $read:expr, $write:expr;)+) => {$(
        impl Type<Postgres> for $type {
            fn type_info() -> PgTypeInfo {
                <i64 as Type<Postgres>>::type_info()
            }
        }

        impl PgHasArrayType for $type {
            fn array_type_info() -> PgTypeInfo {
                <i64 as PgHasArrayType>::array_type_info()
            }
        }

        impl<'r> Decode<'r, Postgres> for $type {
            fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
                let stored = <i64 as Decode<Postgres>>::decode(value)?;
                $read(stored).map_err(|_| OutOfRange(stored).into())
            }
        }

        impl<'q> Encode<'q, Postgres> for $type {
            fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
                <i64 as Encode<Postgres>>::encode($write(*self), buf)
            }
        }
    )+};
}

macro_rules! identifiers {
    ($($id:ident),+) => { as_bigint!($($id: |stored| Ok::<_, OutOfRange>($id::new(stored)), $id::get;)+); };
}

identifiers!(
    AgentId,
    AssignmentId,
    BatchId,
    EmbeddingEpoch,
    HistoryId,
    Incarnation,
    LeaseToken,
    OrderId,
    SchedulerId,
    SessionId,
    SiteId,
    TaskId,
    TermNumber
);
as_bigint! {
    Rtt: Rtt::try_from_micros, Rtt::as_micros;
    Micros: |stored| u64::try_from(stored).map(|micros| Micros(Duration::from_micros(micros))), |Micros(length)| whole(length.as_micros());
    Millis: |stored| u64::try_from(stored).map(|millis| Millis(Duration::from_millis(millis))), |Millis(length)| whole(length.as_millis());
}

/// Makes a type readable from `jsonb`. To write such a value, wrap it in [`Json`].
macro_rules! from_json {
    ($($type:ty),+) => {$(
        impl Type<Postgres> for $type {
            fn type_info() -> PgTypeInfo {
                <Json<Self> as Type<Postgres>>::type_info()
            }
        }

        impl<'r> Decode<'r, Postgres> for $type {
            fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
                <Json<Self> as Decode<Postgres>>::decode(value).map(|Json(document)| document)
            }
        }
    )+};
}

from_json!(Constraints, CrawlPolicy, ExcludedAgents, ChoiceReasons);

/// Microseconds in a day. Postgres stores the days of an interval separately.
const MICROS_A_DAY: i64 = 86_400_000_000;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct OutOfRange(i64);

/// A duration stored in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Micros(pub Duration);

/// A duration stored in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Millis(pub Duration);

impl From<Micros> for Duration {
    fn from(Micros(length): Micros) -> Self {
        length
    }
}

impl From<Millis> for Duration {
    fn from(Millis(length): Millis) -> Self {
        length
    }
}

/// An unsigned number, stored in a signed `integer` or `bigint`.
#[derive(Debug, Clone, Copy)]
pub struct Unsigned<U>(pub U);

impl<U> Type<Postgres> for Unsigned<U> {
    fn type_info() -> PgTypeInfo {
        <i64 as Type<Postgres>>::type_info()
    }

    fn compatible(stored: &PgTypeInfo) -> bool {
        <i64 as Type<Postgres>>::compatible(stored) || <i32 as Type<Postgres>>::compatible(stored)
    }
}

impl<'r, U: TryFrom<i64>> Decode<'r, Postgres> for Unsigned<U> {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let stored = if value.type_info().name() == "INT4" {
            i64::from(<i32 as Decode<Postgres>>::decode(value)?)
        } else {
            <i64 as Decode<Postgres>>::decode(value)?
        };
        U::try_from(stored).map(Self).map_err(|_| OutOfRange(stored).into())
    }
}

impl From<Unsigned<Self>> for u32 {
    fn from(Unsigned(number): Unsigned<Self>) -> Self {
        number
    }
}

impl From<Unsigned<u32>> for usize {
    fn from(Unsigned(number): Unsigned<u32>) -> Self {
        Self::try_from(number).unwrap_or(Self::MAX)
    }
}

impl From<Unsigned<Self>> for u64 {
    fn from(Unsigned(number): Unsigned<Self>) -> Self {
        number
    }
}

/// A duration that a statement takes or computes. A duration above Postgres' range becomes the
/// maximum. A negative duration, which occurs after a clock has been set back, is read as zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct Interval(pub Duration);

impl Type<Postgres> for Interval {
    fn type_info() -> PgTypeInfo {
        <PgInterval as Type<Postgres>>::type_info()
    }
}

impl PgHasArrayType for Interval {
    fn array_type_info() -> PgTypeInfo {
        <PgInterval as PgHasArrayType>::array_type_info()
    }
}

impl<'r> Decode<'r, Postgres> for Interval {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let PgInterval { months, days, microseconds } = <PgInterval as Decode<Postgres>>::decode(value)?;
        if months != 0 {
            return Err("of months, which have no length".into());
        }
        let micros = i64::from(days).saturating_mul(MICROS_A_DAY).saturating_add(microseconds);
        Ok(Self(Duration::from_micros(u64::try_from(micros).unwrap_or(0))))
    }
}

impl From<Interval> for Duration {
    fn from(Interval(length): Interval) -> Self {
        length
    }
}

impl<'q> Encode<'q, Postgres> for Interval {
    fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let interval = PgInterval { months: 0, days: 0, microseconds: whole(self.0.as_micros()) };
        Encode::<Postgres>::encode(interval, buf)
    }
}

/// Converts a number for a column or a parameter; a number above the range becomes the maximum.
pub(crate) fn whole<S: TryFrom<U> + Bounded, U>(number: U) -> S {
    S::try_from(number).unwrap_or(S::MAX)
}

/// A number type of Postgres.
pub(crate) trait Bounded {
    const MAX: Self;
}

impl Bounded for i32 {
    const MAX: Self = Self::MAX;
}

impl Bounded for i64 {
    const MAX: Self = Self::MAX;
}
