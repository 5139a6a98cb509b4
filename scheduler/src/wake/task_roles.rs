//! Lists the background tasks that can be woken, and says by which role each task runs.

use crate::store::schedulers::Role;

/// Passes all background tasks to a macro, each with its signal and its role. The signal has the
/// background task's name. A scheduler runs a background task only while it leads the role.
macro_rules! for_tasks {
    ($declare:ident) => {
        $declare! {
            /// Sent when a site or beacon may have to be measured.
            Measure measure Plan,
            /// Sent when the mesh or the landmarks changed.
            Fit fit Fit,
            /// Sent when a landmark may have been lost.
            Landmarks landmarks Fit,
            /// Sent when a site's measurements or the embedding changed.
            Locate locate Plan,
            /// Sent when a located task may need a confirmation, or a confirmation may have
            /// progressed.
            Confirm confirm Plan,
            /// Sent when a task may need an agent and an agent may be available.
            Assign assign Plan,
            /// Sent when a change of a whole batch has begun, or can proceed.
            Changes changes Plan,
            /// Sent when a session may have ended.
            Reap reap Reap,
            /// Sent when a crawl has ended. No background task waits for this signal. The job that
            /// assigns tasks counts these signals to detect that a slot became free. The signal
            /// also marks the scheduler as active.
            Crawls crawls Plan,
            /// Sent when an operator's request for a fit may have been answered. Operators' calls at
            /// any scheduler wait for this signal, and no background task does.
            Fitted fitted Fit,
        }
    };
}

pub(super) use for_tasks;

/// Declares the background tasks. Each has a name and a role.
macro_rules! tasks {
    ($($(#[$doc:meta])* $task:ident $signal:ident $role:ident,)+) => {
        /// A background task that can be woken.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Task {
            $($(#[$doc])* $task,)+
        }

        impl Task {
            pub const ALL: &[Self] = &[$(Self::$task,)+];

            /// The background task's name, as used in logs and in messages between schedulers.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$task => stringify!($signal),)+ }
            }

            /// Whether callers at any scheduler wait for the signal, not only the background task.
            pub(super) const fn is_awaited_everywhere(self) -> bool {
                matches!(self, Self::Fitted)
            }

            /// The role whose leader runs the background task.
            pub const fn role(self) -> Role {
                match self { $(Self::$task => Role::$role,)+ }
            }
        }
    };
}

for_tasks!(tasks);
