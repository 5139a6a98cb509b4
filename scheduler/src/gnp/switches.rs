//! The maps that can be fitted, and the ingredients of each, which can be left out one by one to see
//! their effect.

use crate::model::words;

words!(
    /// The map that predicts.
    #[derive(Default)]
    Tier {
        /// The published system: landmarks alone place every host, by squared relative errors.
        Gnp = "gnp",
        /// One point per host, with all of [`PlainSwitches`].
        Plain = "plain",
        /// A cloud of points per site, corrected by the map's errors between agents.
        #[default]
        Refined = "refined",
    }
);

/// Declares a struct of switches that are on by default, with their names.
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

            /// A copy without one ingredient; `None` for an unknown name.
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
    /// What the plain map adds to GNP (Ng and Zhang, INFOCOM 2002); all are on by default.
    PlainSwitches {
        /// Agents are placed by the whole mesh. Off: agents and sites are placed by the landmarks
        /// alone.
        mesh,
        /// Every host has a height. Off: heights are zero.
        height,
        /// Minimises log errors. Off: relative errors.
        log,
        /// Large errors count linearly. Off: every error counts by its square.
        robust,
        /// A weak prior keeps sites near agents.
        prior,
    }
);

impl PlainSwitches {
    /// The published system, which has none of them.
    pub const GNP: Self = Self { mesh: false, height: false, log: false, robust: false, prior: false };

    /// The ingredients of this map's points; the refined map is made from the plain one.
    pub fn of(tier: Tier) -> Self {
        match tier {
            Tier::Gnp => Self::GNP,
            Tier::Plain | Tier::Refined => Self::default(),
        }
    }
}

switches!(
    /// The ingredients of the refined map; all are on by default.
    RefinedSwitches {
        /// Every host has a height. Off: no heights.
        height,
        /// Large errors in the mesh count linearly. Off: every error counts by its square.
        robust,
        /// The residuals of the mesh correct predictions.
        kriging,
        /// Held-out agents choose the kriging constants. Off: the first constants in the list are
        /// used.
        constants,
        /// The residuals of a site's measurements correct the predictions for agents near the
        /// landmarks; needs `kriging`.
        residuals,
        /// A site is a cloud. Off: only the point with the greatest weight.
        cloud,
        /// Averages over dimensions. Off: a single number of dimensions.
        dimensions,
        /// Ranks agents by expected distance. Off: by the median.
        expectation,
        /// Adds a penalty to predictions that compete with measurements, from the errors of held-out
        /// agents; needs `kriging`.
        penalty,
    }
);
