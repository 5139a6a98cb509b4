//! What the rows of a report are about.

words!(
    /// What the rows of a report are about: one row for each value, or combination of values.
    ReportGroup {
        /// The agent.
        Agent = "agent",
        /// The agent's city.
        City = "city",
        /// The agent's carrier.
        Carrier = "carrier",
        /// The day, in UTC.
        Day = "day",
        /// The kind of reason why sites failed.
        Reason = "reason",
        Batch = "batch",
    }
);
