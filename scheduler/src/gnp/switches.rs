//! The kinds of maps (tiers), and switches that leave out ingredients of a map to measure their
//! effect.

use crate::model::words;

words!(
    /// The kind of map from which round trips are predicted.
    #[derive(Default)]
    Tier {
        /// GNP as published: every host is placed by landmarks alone, with squared relative errors.
        Gnp = "gnp",
        /// One point per host, with all ingredients of [`PlainSwitches`].
        Plain = "plain",
        /// A cloud of points per site, corrected by the map's errors between agents.
        #[default]
        Refined = "refined",
    }
);

/// Declares a struct of switches that are on by default, and a list of the switches' names.
macro_rules! switches {
    ($(#[$doc:meta])* $name:ident { $($(#[$said:meta])* $switch:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            $($(#[$said])* pub $switch: bool,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($switch: true,)+ }
            }
        }

        impl $name {
            pub const NAMES: &'static [&'static str] = &[$(stringify!($switch),)+];

            /// Returns a copy with one switch off; `None` if no switch has this name.
            #[must_use]
            pub fn without(mut self, name: &str) -> Option<Self> {
                match name {
                    $(stringify!($switch) => self.$switch = false,)+
                    _ => return None,
                }
                Some(self)
            }
        }
    };
}

switches!(
    /// The improvements of the plain map over GNP (Ng and Zhang, INFOCOM 2002).
    PlainSwitches {
        /// Agents are placed by the whole mesh; if off, agents and sites are placed by the
        /// landmarks alone.
        mesh,
        /// Every host has a height; if off, all heights are zero.
        height,
        /// Fits minimise log errors; if off, they minimise relative errors.
        log,
        /// Large errors count linearly; if off, every error is squared.
        robust,
        /// A weak prior keeps sites near agents.
        prior,
    }
);

impl PlainSwitches {
    /// The switches of GNP as published: all are off.
    pub const GNP: Self = Self { mesh: false, height: false, log: false, robust: false, prior: false };

    /// The switches of a tier. The plain and the refined tier have the same switches, because the
    /// refined tier also fits the plain map.
    pub fn of(tier: Tier) -> Self {
        match tier {
            Tier::Gnp => Self::GNP,
            Tier::Plain | Tier::Refined => Self::default(),
        }
    }
}

switches!(
    /// The ingredients of the refined map.
    RefinedSwitches {
        /// Every host has a height; if off, no host has a height.
        height,
        /// Large errors in the mesh count linearly; if off, every error is squared.
        robust,
        /// The residuals of the mesh correct predictions.
        kriging,
        /// The kriging constants are those that predict held-out agents best; if off, the first
        /// constants in the list are used.
        constants,
        /// The residuals of a site's measurements correct the predictions for agents near the
        /// landmarks; needs `kriging`.
        residuals,
        /// A site is a cloud of points; if off, only the point with the greatest weight is used.
        cloud,
        /// Predictions are averaged over layouts with several numbers of dimensions; if off, there
        /// is one layout.
        dimensions,
        /// Agents are ranked by the expected distance; if off, by the median distance.
        expectation,
        /// The prediction penalty is added to predictions that compete with measurements. Needs
        /// `kriging`.
        penalty,
    }
);
