-- Measuring: round trips from agents to sites and between agents, the orders for them, and agents
-- whose measurements are not used.

-- Orders to measure that are not answered yet. The unique indexes keep a site, and an address, to
-- one order over all probers, and so to one request a second.
create table measurement_orders (
    -- Its number.
    id bigint primary key generated always as identity,
    -- The agent that measures.
    prober_id bigint not null references agents (id),
    -- The site to measure; null where it is an agent.
    site_id bigint references sites (id),
    -- The agent whose beacon is measured; null where it is a site.
    agent_id bigint references agents (id),
    -- The site's address when it was ordered; null while it was not known.
    address inet,
    -- Whether a confirmation asked for it: that takes fewer samples.
    confirming boolean not null default false,
    -- The session it was sent on; null until sent.
    session_id bigint references sessions (id),
    -- When it was ordered.
    created_at timestamptz not null default now(),
    -- The moment after which an unanswered order is given up.
    expires_at timestamptz not null,
    constraint measurement_orders_one_target check ((site_id is null) <> (agent_id is null))
);
create unique index measurement_orders_one_per_site on measurement_orders (site_id) where site_id is not null;
create unique index measurement_orders_one_per_pair on measurement_orders (prober_id, agent_id) where agent_id is not null;
create unique index measurement_orders_one_per_address on measurement_orders (address) where address is not null;
create index measurement_orders_unsent on measurement_orders (prober_id) where session_id is null;

-- Why a measurement failed.
create type probe_failure as enum (
    'unknown',         -- a cause that the scheduler did not know
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
);

-- The newest measurement of an agent's beacon by another agent.
create table mesh_measurements (
    -- The agent that measured.
    prober_id bigint not null references agents (id),
    -- The agent whose beacon it measured.
    agent_id bigint not null references agents (id),
    -- The statistical weighted mean of the samples; null when nothing answered, and then `failure`
    -- says why.
    rtt_us bigint constraint mesh_measurements_rtt_positive check (rtt_us > 0),
    -- Samples that were answered, and that were not.
    answered integer not null,
    lost integer not null, -- not answered
    -- Why it failed, in the prober's words; null when it succeeded.
    failure text,
    -- When it was taken.
    measured_at timestamptz not null default now(),
    -- The cause of the newest failure of the pair, whether a success came since or not; null where
    -- there was none.
    cause probe_failure,
    -- That failure in the prober's words.
    said text,
    -- When that failure was reported.
    failed_at timestamptz,
    -- The round trip of the newest success of the pair, whether a failure came since or not; null
    -- where there was none.
    reached_us bigint constraint mesh_measurements_reached_positive check (reached_us > 0),
    -- When that success was reported.
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
    -- The statistical weighted mean of the samples; null when nothing answered, and then `failure`
    -- says why.
    rtt_us bigint constraint site_measurements_rtt_positive check (rtt_us > 0),
    -- The samples' minimum, median, and spread.
    min_us bigint,
    median_us bigint, -- the median
    spread_us bigint, -- the spread
    -- Samples that were answered, and that were not.
    answered integer not null,
    lost integer not null, -- not answered
    -- Why it failed, in the prober's words; null when it succeeded.
    failure text,
    -- The address it connected to; null when it connected to none.
    address inet,
    -- The origin of another site at the same address that the prober measured in place of this one;
    -- null when it measured this one.
    shared_from text,
    -- Requests this prober has sent to the site and connections it has tried, over all its
    -- measurements.
    requests bigint not null default 0,
    -- When it was taken.
    measured_at timestamptz not null default now(),
    primary key (site_id, prober_id),
    constraint site_measurements_result check ((rtt_us is null) <> (failure is null))
);
-- Agents are judged by the newest; the oldest are deleted.
create index site_measurements_by_time on site_measurements (measured_at);

-- What an agent measured last.
create index site_measurements_by_prober on site_measurements (prober_id, measured_at);

-- Sites that a prober sees at another address than `sites.address`. A prober without a row here
-- sees the site there.
create table resolved_addresses (
    -- The site.
    site_id bigint not null references sites (id),
    -- The agent that resolved its name.
    prober_id bigint not null references agents (id),
    -- The address that the name led the prober to, the last time.
    address inet not null,
    -- How often in a row it answered an order with another address than the order was for.
    postponed integer not null default 0,
    -- Requests it sent to the site that no measurement counts yet.
    requests bigint not null default 0,
    primary key (site_id, prober_id)
);

-- Agents that found that the sites at an address differ, so that these do not share measurements.
-- One agent's finding holds for itself, that of two for all.
create table address_disagreements (
    -- The address.
    address inet not null,
    -- The agent that measured a site there although it could have shared a measurement.
    prober_id bigint not null references agents (id),
    -- The newest time that it found another round trip.
    seen_at timestamptz not null default now(),
    primary key (address, prober_id)
);
create index address_disagreements_seen on address_disagreements (seen_at);

create type quarantine_evidence as enum (
    'light',     -- faster than light in fibre between places that are known
    'collusion', -- agents that confirm each other against all others
    'asymmetry', -- the two directions of its pairs differ
    'residual',  -- its round trips do not fit the map
    'sites'      -- its round trips to sites contradict those of other agents
);

-- Agents whose measurements are not used, and that measure no sites while their quarantine is open.
create table quarantines (
    -- Its number.
    id bigint primary key generated always as identity,
    -- The agent.
    agent_id bigint not null references agents (id),
    -- The evidence against it.
    evidence quarantine_evidence not null,
    -- The evidence for people, with figures.
    reason text not null,
    -- When it began.
    since timestamptz not null default now(),
    -- Judgements in a row, each on newer measurements of the agent, that found it consistent.
    consistent integer not null default 0,
    -- When the last judgement that counted was made.
    judged_at timestamptz not null default now(),
    -- When it ended; null while it is open.
    released_at timestamptz
);
create unique index quarantines_one_open on quarantines (agent_id) where released_at is null;
