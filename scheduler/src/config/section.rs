//! The macro `section` declares a section of the configuration file and checks its bounds.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::error::{ConfigError, value};
use crate::model::durations_and_sizes::{deserialize_duration, in_largest_unit};

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);
pub(super) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// A tenth of a second, the lower bound of several duration settings.
pub(super) const TENTH: Duration = Duration::from_millis(100);

/// The type of a setting with bounds. It reads values from a file, and formats them for messages.
pub(super) trait Setting: PartialOrd + Copy {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;
    fn said(self) -> String;
}

impl Setting for u32 {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::deserialize(from)
    }

    fn said(self) -> String {
        self.to_string()
    }
}

impl Setting for Duration {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        deserialize_duration(from)
    }

    fn said(self) -> String {
        in_largest_unit(self)
    }
}

/// Checks that a value lies within its bounds.
pub(super) fn within<S: Setting>(key: &'static str, found: S, range: &RangeInclusive<S>) -> Result<(), ConfigError> {
    if range.contains(&found) {
        return Ok(());
    }
    Err(value(key, format!("{} to {}", range.start().said(), range.end().said()), found.said()))
}

/// Declares a section of the configuration file: each setting with its default and bounds. A
/// setting without bounds is written in brackets.
macro_rules! section {
    ($(#[$about:meta])* $section:ident $key:literal
     $([$(#[$free_doc:meta])* $free:ident: $free_type:ty = $free_default:expr])? {
        $($(#[$doc:meta])* $setting:ident: $type:ty = $default:expr, $bounds:expr;)+
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $section {
            $($(#[$free_doc])* pub $free: $free_type,)?
            $($(#[$doc])* #[serde(deserialize_with = "Setting::read")] pub $setting: $type,)+
        }

        impl Default for $section {
            fn default() -> Self {
                Self { $($free: $free_default,)? $($setting: $default,)+ }
            }
        }

        impl $section {
            pub(in crate::config) fn check_bounds(&self) -> Result<(), ConfigError> {
                $(within(concat!($key, ".", stringify!($setting)), self.$setting, &($bounds))?;)+
                Ok(())
            }
        }
    };
}

pub(super) use section;
