-- Measuring: round trips from agents to sites and between agents, the orders to measure them, and
-- the agents whose measurements are not used.

-- Measurement orders that have not been answered yet. Unique indexes permit at most one order for a
-- site, and at most one for an address, over all probers. So no site is probed by two agents at a
-- time.
create table measurement_orders (
    -- The order's identifier.
    id bigint primary key generated always as identity,
    -- The agent that gets the order.
    prober_id bigint not null references agents (id),
    -- The site to measure; null if the order is about a beacon.
    site_id bigint references sites (id),
    -- The agent whose beacon is to be measured; null if the order is about a site.
    agent_id bigint references agents (id),
    -- The address that the order locks. Null for a beacon, and if the site's address is unknown.
    address inet,
    -- Whether the order belongs to a confirmation, which needs fewer samples.
    confirming boolean not null default false,
    -- The session on which the order was sent; null until it is sent.
    session_id bigint references sessions (id),
    -- When the order was made.
    created_at timestamptz not null default now(),
    -- When the order expires if it is not answered.
    expires_at timestamptz not null,
    constraint measurement_orders_one_target check ((site_id is null) <> (agent_id is null))
);
create unique index measurement_orders_one_per_site on measurement_orders (site_id) where site_id is not null;
create unique index measurement_orders_one_per_pair on measurement_orders (prober_id, agent_id) where agent_id is not null;
create unique index measurement_orders_one_per_address on measurement_orders (address) where address is not null;
create index measurement_orders_unsent on measurement_orders (prober_id) where session_id is null;

-- Why a measurement failed.
create type probe_failure as enum (
    'unknown',         -- the report was invalid, or the scheduler did not know the reported cause
    'dns',             -- the name did not resolve
    'refused',         -- the connection was refused
    'connect-timeout', -- the connection was not established in time
    'connect',         -- the connection failed for another reason
    'tls',             -- the TLS handshake failed
    'timeout',         -- the connection was established, but no answer came in time
    'protocol',        -- the answer was not HTTP, or the connection broke
    'guard',           -- the prober's guard refused the address
    'no-contact-url',  -- the prober has no contact URL
    'metric',          -- the prober cannot use the metric; for example, it may not send ICMP
    'order',           -- the prober did not understand the order
    'no-report'        -- the prober did not report in time
);

-- The newest measurement of an agent's beacon by another agent.
create table mesh_measurements (
    -- The agent that measured.
    prober_id bigint not null references agents (id),
    -- The agent whose beacon was measured.
    agent_id bigint not null references agents (id),
    -- The statistical weighted mean of the samples. Null if no sample was answered; `failure` then
    -- says why.
    rtt_us bigint constraint mesh_measurements_rtt_positive check (rtt_us > 0),
    -- Number of answered samples.
    answered integer not null,
    lost integer not null, -- number of samples without an answer
    -- Why the measurement failed, as the prober's message; null if it succeeded.
    failure text,
    -- When the measurement was taken.
    measured_at timestamptz not null default now(),
    -- The cause of the pair's newest failed measurement, even if a later measurement succeeded;
    -- null if none failed.
    cause probe_failure,
    -- The prober's message about the pair's newest failure.
    said text,
    -- When the pair's newest failure was reported.
    failed_at timestamptz,
    -- The round trip of the pair's newest successful measurement, even if a later measurement
    -- failed; null if none succeeded.
    reached_us bigint constraint mesh_measurements_reached_positive check (reached_us > 0),
    -- When the pair's newest success was reported.
    reached_at timestamptz,
    primary key (prober_id, agent_id),
    constraint mesh_measurements_result check ((rtt_us is null) <> (failure is null))
);
create index mesh_measurements_by_agent on mesh_measurements (agent_id);

-- The newest measurement of a site by an agent.
create table site_measurements (
    -- The site.
    site_id bigint not null references sites (id),
    -- The agent that measured.
    prober_id bigint not null references agents (id),
    -- The statistical weighted mean of the samples. Null if no sample was answered; `failure` then
    -- says why.
    rtt_us bigint constraint site_measurements_rtt_positive check (rtt_us > 0),
    -- The minimum of the samples.
    min_us bigint,
    median_us bigint, -- the median of the samples
    spread_us bigint, -- the spread of the samples
    -- Number of answered samples.
    answered integer not null,
    lost integer not null, -- number of samples without an answer
    -- Why the measurement failed, as the prober's message; null if it succeeded.
    failure text,
    -- The address to which the prober connected, or to which the name resolved; null if unknown.
    address inet,
    -- If the prober measured another site at the same address instead, the origin of that site;
    -- null if the prober measured this site.
    shared_from text,
    -- Number of requests that this prober has sent to the site, plus the number of connections that
    -- it has tried, in all its measurements.
    requests bigint not null default 0,
    -- When the measurement was taken.
    measured_at timestamptz not null default now(),
    primary key (site_id, prober_id),
    constraint site_measurements_result check ((rtt_us is null) <> (failure is null))
);
-- For judging agents by their newest measurements, and for deleting the oldest measurements.
create index site_measurements_by_time on site_measurements (measured_at);

-- For reading an agent's newest measurements.
create index site_measurements_by_prober on site_measurements (prober_id, measured_at);

-- Resolved addresses. A site and a prober have a row if the site's name resolves at this prober to
-- an address other than `sites.address`, if the prober postponed its last order for the site, or if
-- requests that led to no measurement are counted for it.
create table resolved_addresses (
    -- The site.
    site_id bigint not null references sites (id),
    -- The agent that resolved the site's name.
    prober_id bigint not null references agents (id),
    -- The address to which the site's name last resolved at the prober.
    address inet not null,
    -- Number of consecutive orders that locked an address other than the one to which the name
    -- resolved.
    postponed integer not null default 0,
    -- Number of the prober's requests to the site that no stored measurement includes yet.
    requests bigint not null default 0,
    primary key (site_id, prober_id)
);

-- Addresses at which an agent found different round trips for two sites. This agent then shares no
-- measurement between sites at the address. If two agents found differences at an address, no agent
-- shares measurements there.
create table address_disagreements (
    -- The address.
    address inet not null,
    -- The agent that measured a second site at the address, although it could have shared the
    -- measurement of the first.
    prober_id bigint not null references agents (id),
    -- When the agent last found different round trips.
    seen_at timestamptz not null default now(),
    primary key (address, prober_id)
);
create index address_disagreements_seen on address_disagreements (seen_at);

create type quarantine_evidence as enum (
    'light',     -- a round trip is faster than light in fibre between the known positions
    'collusion', -- several agents confirm each other, but contradict all other agents
    'asymmetry', -- the round trips in the two directions between the agent and others differ
    'residual',  -- the agent's round trips do not fit the map
    'sites'      -- the agent's round trips to sites contradict those of other agents
);

-- Quarantines of agents. While an agent's quarantine is open, its measurements are not used.
create table quarantines (
    -- The quarantine's identifier.
    id bigint primary key generated always as identity,
    -- The agent.
    agent_id bigint not null references agents (id),
    -- The kind of evidence against the agent.
    evidence quarantine_evidence not null,
    -- A sentence for operators that describes the evidence, with figures.
    reason text not null,
    -- When the quarantine began.
    since timestamptz not null default now(),
    -- Number of consecutive judgements that found the agent consistent. A judgement counts only if
    -- the agent has new measurements since the previous judgement.
    consistent integer not null default 0,
    -- When the last judgement that counted was made.
    judged_at timestamptz not null default now(),
    -- When the quarantine ended; null while it is open.
    released_at timestamptz
);
create unique index quarantines_one_open on quarantines (agent_id) where released_at is null;
