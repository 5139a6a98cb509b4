impl Word for crate::v1::DistanceMetric {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "ttfb",
            2 => "connect",
            3 => "icmp",
            _ => "",
        }
    }
}
impl Word for crate::v1::OutcomeKind {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "complete",
            2 => "truncated",
            3 => "blocked",
            4 => "unreachable",
            _ => "",
        }
    }
}
impl Word for crate::v1::Budget {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "pages",
            2 => "bytes",
            3 => "duration",
            4 => "depth",
            _ => "",
        }
    }
}
impl Word for crate::v1::BlockedBy {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "robots",
            2 => "guard",
            3 => "breaker",
            _ => "",
        }
    }
}
impl Word for crate::v1::Trouble {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "name-not-found",
            2 => "connection-refused",
            3 => "no-connection",
            4 => "timed-out",
            5 => "tls",
            6 => "redirect",
            7 => "status-4xx",
            8 => "status-5xx",
            9 => "broken-answer",
            _ => "",
        }
    }
}
impl Word for crate::v1::measurement_failure::Reason {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "dns",
            2 => "connect",
            3 => "tls",
            4 => "timeout",
            5 => "protocol",
            6 => "guard",
            7 => "no-contact-url",
            8 => "metric",
            9 => "order",
            10 => "refused",
            11 => "connect-timeout",
            12 => "no-report",
            _ => "",
        }
    }
}
impl Word for crate::v1::outcome_ack::Answer {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "accepted",
            2 => "duplicate",
            3 => "stale",
            4 => "lost-history",
            _ => "",
        }
    }
}
impl Word for crate::v1::EnrolmentState {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "open",
            2 => "used",
            3 => "expired",
            4 => "revoked",
            _ => "",
        }
    }
}
impl Word for crate::v1::ServiceState {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "ready",
            2 => "draining",
            3 => "drained",
            4 => "paused",
            5 => "away",
            6 => "removed",
            7 => "quarantined",
            8 => "never-connected",
            _ => "",
        }
    }
}
impl Word for crate::v1::WayState {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "reached",
            2 => "failed",
            3 => "untried",
            4 => "not-asked",
            5 => "no-beacon",
            6 => "away",
            _ => "",
        }
    }
}
impl Word for crate::v1::BatchChangeKind {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "cancel",
            2 => "retry",
            3 => "remove",
            _ => "",
        }
    }
}
impl Word for crate::v1::Unmet {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "wait",
            2 => "fail",
            _ => "",
        }
    }
}
impl Word for crate::v1::BatchState {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "open",
            2 => "ended",
            _ => "",
        }
    }
}
impl Word for crate::v1::TaskState {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "submitted",
            2 => "measuring",
            3 => "located",
            4 => "assigned",
            5 => "leased",
            6 => "done",
            7 => "failed",
            8 => "cancelled",
            _ => "",
        }
    }
}
impl Word for crate::v1::ReasonKind {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "other",
            2 => "guard",
            3 => "robots",
            4 => "breaker",
            5 => "blocked",
            6 => "name-not-found",
            7 => "connection-refused",
            8 => "no-connection",
            9 => "timed-out",
            10 => "tls",
            11 => "redirect",
            12 => "status-4xx",
            13 => "status-5xx",
            14 => "broken-answer",
            15 => "unreachable",
            16 => "poison",
            17 => "no-agent",
            18 => "cancelled",
            19 => "same-site",
            _ => "",
        }
    }
}
impl Word for crate::v1::WaitCause {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "queued",
            2 => "measurements",
            3 => "choice",
            4 => "planned",
            5 => "no-agent",
            6 => "none-accepts-work",
            7 => "no-landmarks",
            8 => "landmarks-away",
            9 => "all-quarantined",
            10 => "no-map",
            11 => "confirming",
            12 => "address",
            13 => "pause",
            14 => "breaker",
            15 => "unmet",
            _ => "",
        }
    }
}
impl Word for crate::v1::UnmetCause {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "excluded",
            2 => "take-no-work",
            _ => "",
        }
    }
}
impl Word for crate::v1::ChoiceCause {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "strategy",
            2 => "explores",
            3 => "spread",
            4 => "next-candidate",
            5 => "rebalanced",
            6 => "taken-back",
            _ => "",
        }
    }
}
impl Word for crate::v1::FallbackCause {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "no-distance",
            2 => "no-address",
            3 => "nothing-shared",
            4 => "no-suffix",
            5 => "no-position",
            6 => "no-agent-position",
            7 => "no-map",
            8 => "nobody-measured",
            9 => "unmeasured",
            10 => "untrusted-map",
            _ => "",
        }
    }
}
impl Word for crate::v1::Parting {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "lost",
            2 => "restarted",
            3 => "reconnected",
            4 => "replaced",
            5 => "left",
            6 => "removed",
            7 => "restored",
            8 => "crashed",
            9 => "handed-back",
            10 => "drained",
            11 => "waited-away",
            12 => "waited-removed",
            13 => "waited-drained",
            14 => "waited-paused",
            15 => "waited-disconnected",
            16 => "waited-excluded",
            _ => "",
        }
    }
}
impl Word for crate::v1::Gain {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "begins-at-once",
            2 => "ends-sooner",
            3 => "nearer",
            _ => "",
        }
    }
}
impl Word for crate::v1::ReportGroup {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "agent",
            2 => "city",
            3 => "carrier",
            4 => "day",
            5 => "reason",
            6 => "batch",
            _ => "",
        }
    }
}
impl Word for crate::v1::AttentionKind {
    fn word(self) -> &'static str {
        match self as i32 {
            1 => "scheduler-lost",
            2 => "scheduler-versions",
            3 => "scheduler-disk",
            4 => "no-contact-url",
            5 => "no-agent",
            6 => "agents-away",
            7 => "agents-paused",
            8 => "agents-quarantined",
            9 => "agent-clocks",
            10 => "agent-versions",
            11 => "agent-disks",
            12 => "agent-twins",
            13 => "beacons-unreached",
            14 => "no-landmarks",
            15 => "landmarks-away",
            16 => "map-alarm",
            17 => "open-circuits",
            18 => "no-eligible-agent",
            19 => "batch-idle",
            20 => "few-landmarks",
            21 => "database-read-only",
            _ => "",
        }
    }
}
