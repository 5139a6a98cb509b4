-- Why agents do not reach each other: the cause of a failure as a word, and what was known before it.

alter table mesh_measurements
    -- The newest failure of the pair, a success since or not: its cause, what the prober said, and when. Null where there was none.
    add column cause text constraint mesh_measurements_cause_known check (
        cause in (
            'unknown',         -- one that the scheduler did not know
            'dns',             -- the name did not resolve
            'refused',         -- the connection was refused
            'connect-timeout', -- no connection came about in time
            'connect',         -- no connection for another reason
            'tls',             -- no TLS session
            'timeout',         -- connected, and no answer in time
            'protocol',        -- something other than HTTP answered
            'guard',           -- the prober's guard refused the address
            'no-contact-url',  -- the prober has no contact URL
            'metric',          -- the metric is not permitted there
            'order',           -- the prober did not understand the order
            'no-report'        -- the prober did not report in time
        )
    ),
    add column said text,
    add column failed_at timestamptz,
    -- The newest success of the pair, a failure since or not.
    add column reached_us bigint constraint mesh_measurements_reached_positive check (reached_us > 0),
    add column reached_at timestamptz;

-- At most a row for each pair of agents that measure each other.
update mesh_measurements
set reached_us = rtt_us, reached_at = case when rtt_us is not null then measured_at end,
    cause = case when rtt_us is null then 'unknown' end, said = failure, failed_at = case when rtt_us is null then measured_at end;
