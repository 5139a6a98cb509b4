//! The setting `draws`: whether an agent is drawn by free slots, or by distances alone.

use crate::model::words;

words!(
    /// The facts used to draw an agent from a task's candidates.
    #[derive(Default)]
    Draws {
        /// Agents with free slots are preferred, and results of crawls correct the distances. A
        /// task that waits for a slot moves to an agent that would finish it sooner.
        #[default]
        Balanced = "balanced",
        /// Considers only the distances, as in the paper: a full agent is as likely to be chosen as
        /// an idle one, and no waiting task is moved.
        Static = "static",
    }
);
