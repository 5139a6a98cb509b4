//! The states of a task.

words!(
    TaskState {
        /// The task waits for the measurements of its site.
        Submitted = "submitted",
        /// Agents are measuring the site.
        Measuring = "measuring",
        /// The task waits until an agent is chosen.
        Located = "located",
        /// An agent is chosen, and the task waits for a slot of this agent.
        Assigned = "assigned",
        /// The agent is crawling the site.
        Leased = "leased",
        Done = "done",
        Failed = "failed",
        Cancelled = "cancelled",
    }
);
