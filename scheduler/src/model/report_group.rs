//! The properties by which a report can group its rows.

words!(
    /// The property by which a report groups its rows: one row for each value, or
    /// combination of values.
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
