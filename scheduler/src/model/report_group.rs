//! The properties by which a report can group its rows.

words!(
    /// A property by which a report groups its rows. The report has one row for each value, or for
    /// each combination of values of several properties.
    ReportGroup {
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
