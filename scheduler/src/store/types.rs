//! What the columns of the schema are in Rust; `sqlx.toml` says which column is which.
//!
//! Round trips and their spreads are stored in microseconds, all other lengths of time in milliseconds, and every length of
//! time that a statement is given is an `interval`. A value that is out of range fails where it is read.

use std::time::Duration;

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::PgInterval;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type, TypeInfo, ValueRef};

use crate::model::{
    AgentId, AssignmentId, BatchId, EmbeddingEpoch, Incarnation, LeaseToken, OrderId, Rtt, SchedulerId, SessionId,
    SiteId, TaskId, TermNumber,
};

/// Stores a type as a `bigint`, by one function each way.
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

/// A stored number that its column does not allow.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct OutOfRange(pub(super) i64);

/// A length of time in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Micros(pub Duration);

/// A length of time in milliseconds.
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

/// A number that is stored with a sign, in an `integer` or a `bigint`, and has none.
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

/// A length of time that a statement is given; beyond what Postgres can hold it is the longest.
#[derive(Debug, Clone, Copy)]
pub struct Interval(pub Duration);

impl Type<Postgres> for Interval {
    fn type_info() -> PgTypeInfo {
        <PgInterval as Type<Postgres>>::type_info()
    }
}

impl<'q> Encode<'q, Postgres> for Interval {
    fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let interval = PgInterval { months: 0, days: 0, microseconds: whole(self.0.as_micros()) };
        Encode::<Postgres>::encode(interval, buf)
    }
}

/// A number as a column or a parameter holds it; beyond its range the greatest.
pub(crate) fn whole<S: TryFrom<U> + Bounded, U>(number: U) -> S {
    S::try_from(number).unwrap_or(S::MAX)
}

/// A number of Postgres.
pub(crate) trait Bounded {
    /// The greatest.
    const MAX: Self;
}

impl Bounded for i32 {
    const MAX: Self = Self::MAX;
}

impl Bounded for i64 {
    const MAX: Self = Self::MAX;
}
