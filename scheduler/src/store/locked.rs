//! Proofs that a transaction has locked rows, so that a function can require the locks that it
//! needs.

use std::borrow::Borrow;
use std::ops::Deref;

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo};
use sqlx::{Encode, Postgres, Type};

use super::Tx;

/// The identifier of a row that this transaction has locked. The store makes one only from what a
/// statement returned that locked or changed the row.
///
/// A borrow of the transaction would keep it from running the statements that need the lock. So
/// nothing but care keeps a proof from outliving its transaction: keep the identifier instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locked<T>(T);

impl<T: Copy> Locked<T> {
    pub(super) const fn by(_: &Tx<'_>, row: T) -> Self {
        Self(row)
    }

    pub(super) fn all<C: FromIterator<Self>>(tx: &Tx<'_>, rows: impl IntoIterator<Item = T>) -> C {
        rows.into_iter().map(|row| Self::by(tx, row)).collect()
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Finds a locked row by its identifier in a set or a map.
impl<T> Borrow<T> for Locked<T> {
    fn borrow(&self) -> &T {
        &self.0
    }
}

impl<T: Type<Postgres>> Type<Postgres> for Locked<T> {
    fn type_info() -> PgTypeInfo {
        T::type_info()
    }
}

impl<T: PgHasArrayType> PgHasArrayType for Locked<T> {
    fn array_type_info() -> PgTypeInfo {
        T::array_type_info()
    }
}

impl<'q, T: Encode<'q, Postgres>> Encode<'q, Postgres> for Locked<T> {
    fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        self.0.encode_by_ref(buf)
    }
}
