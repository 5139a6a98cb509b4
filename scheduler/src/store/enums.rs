//! Maps the schema's enums to Rust types. Reading a value that has no Rust variant is an error.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};

use crate::gnp::trust::Kind as Evidence;
use crate::model::{
    Budget, OutcomeKind, ReasonKind, Stage, Strategy, TaskState, UnmeasuredCause, UnmetCause, WaitCause,
};

use super::agents::refusals::Refusal;
use super::leases::LeaseState;
use crate::store::agents::SessionState;
use crate::store::agents::sessions::EndCause;
use crate::store::batches::changes::ChangeKind;
use crate::store::measurements::results_and_failures::Cause as FailureCause;
use crate::store::schedulers::Role;
use crate::store::schema::histories::HistoryCause;

/// Stores the variants of a Rust enum as values of a Postgres enum.
macro_rules! as_enum {
    ($($type:ty: $name:literal;)+) => {
    $(
        impl Type<Postgres> for $type {
            fn type_info() -> PgTypeInfo {
                PgTypeInfo::with_name($name)
            }
        }

        impl<'r> Decode<'r, Postgres> for $type {
            fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
                let word = <&str as Decode<Postgres>>::decode(value)?;
                Self::named(word).ok_or_else(|| UnknownWord(word.to_owned()).into())
            }
        }

        impl<'q> Encode<'q, Postgres> for $type {
            fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
                <&str as Encode<Postgres>>::encode(self.name(), buf)
            }
        }
    )+

        /// Whether this program knows the value `word` of the Postgres enum `name`.
        #[cfg(test)]
        fn is_known(name: &str, word: &str) -> bool {
            match name {
                $($name => <$type>::named(word).is_some(),)+
                "hold_cause" => WaitCause::named(word).is_some(),
                _ => false,
            }
        }
    };
}

as_enum! {
    Budget: "crawl_budget";
    ChangeKind: "change_kind";
    Role: "role";
    EndCause: "session_end";
    Evidence: "quarantine_evidence";
    FailureCause: "probe_failure";
    HistoryCause: "history_cause";
    LeaseState: "lease_state";
    OutcomeKind: "outcome_kind";
    ReasonKind: "reason_kind";
    Refusal: "refusal_kind";
    SessionState: "session_state";
    Stage: "wait_stage";
    TaskState: "task_state";
    UnmeasuredCause: "unmeasured_cause";
    UnmetCause: "unmet_cause";
    WaitCause: "wait_cause";
}

impl Type<Postgres> for Strategy {
    fn type_info() -> PgTypeInfo {
        <str as Type<Postgres>>::type_info()
    }
}

impl<'r> Decode<'r, Postgres> for Strategy {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let name = <&str as Decode<Postgres>>::decode(value)?;
        name.parse().map_err(|_| UnknownWord(name.to_owned()).into())
    }
}

/// The error for a stored value that this program does not know.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UnknownWord(String);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sqlx::PgPool;

    use super::*;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn every_word_of_an_enum_of_the_schema_is_known(pool: PgPool) {
        let words: Vec<(String, String)> = sqlx::query_as(
            "select t.typname::text, e.enumlabel::text from pg_enum e join pg_type t on t.oid = e.enumtypid
             -- No statement returns values of these types.
             where t.typname not in ('assignment_cause', 'choice_kind', 'fallback_cause', 'position_source')",
        )
        .fetch_all(&pool)
        .await
        .expect("read the enums");
        let unknown: BTreeSet<&(String, String)> = words.iter().filter(|(name, word)| !is_known(name, word)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert!(!is_known("role", "reign") && !is_known("no_such_type", "reap"));
    }
}
