-- The whole of what Landfall remembers. Times are Postgres' own; round trips are microseconds (`_us`).

-- What the operator set for the whole fleet; exactly one row.
create table settings (
    singleton boolean primary key default true constraint settings_one_row check (singleton),
    -- Carried in every user agent; null until the operator sets one.
    contact_url text,
    -- Dimensions asked of the embedding; null: min(8, landmarks - 1).
    dimensions integer constraint settings_dimensions_positive check (dimensions >= 1),
    -- SHA-256 of the operator's token.
    operator_token_hash bytea
);
insert into settings default values;

-- Agents: a crawler process at one city on one carrier.
create table agents (
    id bigint primary key generated always as identity,
    name text not null constraint agents_name_unique unique,
    city text not null,
    carrier text not null,
    -- ISO 3166-1 alpha-2; empty when unknown.
    country text not null default '',
    -- Sites crawled at once.
    capacity integer not null default 1 constraint agents_capacity_range check (capacity between 1 and 10000),
    version text not null default '',
    -- Where its beacon is reached; null when it runs none.
    beacon_url text,
    -- SHA-256 of the agent's credential.
    credential_hash bytea not null constraint agents_credential_unique unique,
    -- Rises by one per session; the newest session's number wins.
    incarnation bigint not null default 0,
    enrolled_at timestamptz not null default now()
);

-- One-time tokens. Each is good for one agent, once.
create table enrolments (
    -- SHA-256 of the token.
    token_hash bytea primary key,
    agent_name text not null,
    city text not null,
    carrier text not null,
    country text not null default '',
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    -- Null until used.
    used_at timestamptz
);

create type session_state as enum (
    'active',  -- renewed by heartbeats
    'expired', -- not renewed in time; its leases go back
    'closed'   -- superseded by a newer incarnation
);

-- One row per connection of an agent; heartbeats renew this row alone.
create table sessions (
    id bigint primary key generated always as identity,
    agent_id bigint not null references agents (id),
    incarnation bigint not null,
    state session_state not null default 'active',
    opened_at timestamptz not null default now(),
    renewed_at timestamptz not null default now(),
    -- The moment after which the reaper may expire it: last renewal + life + grace.
    expires_at timestamptz not null,
    constraint sessions_incarnation_unique unique (agent_id, incarnation)
);
create unique index sessions_one_active on sessions (agent_id) where state = 'active';

-- The agents that others, and sites, are measured from.
create table landmarks (
    agent_id bigint primary key references agents (id),
    -- Order of choice, from 0.
    position integer not null constraint landmarks_position_unique unique,
    -- Why it was chosen, for people.
    reason text not null,
    chosen_at timestamptz not null default now()
);

-- Sites: origins to be crawled.
create table sites (
    id bigint primary key generated always as identity,
    -- As submitted, canonical: a bare host, or scheme://host:port.
    name text not null constraint sites_name_unique unique,
    -- scheme://host:port once a prober or crawler has settled it.
    origin text,
    -- The site this one proved to be.
    alias_of bigint references sites (id),
    created_at timestamptz not null default now()
);
create unique index sites_one_per_origin on sites (origin) where alias_of is null;
create index sites_aliases on sites (id) where alias_of is not null;

create table batches (
    id bigint primary key generated always as identity,
    name text not null constraint batches_name_unique unique,
    -- random | gnp-top1 | gnp-top3
    strategy text not null,
    max_pages integer not null,
    max_bytes bigint not null,
    max_depth integer not null,
    max_duration_ms bigint not null,
    request_interval_ms bigint not null,
    created_at timestamptz not null default now()
);

-- Answers to submissions, so that a repeat gets the first answer.
create table submissions (
    idempotency_key text primary key,
    batch_id bigint not null references batches (id),
    added bigint not null,
    already_present bigint not null,
    duplicates bigint not null,
    batch_total bigint not null,
    created_at timestamptz not null default now()
);

create type task_state as enum (
    'submitted', -- known, nothing done
    'measuring', -- landmarks are measuring its site
    'located',   -- distances known, or known to be unknowable (then `reason` says why)
    'assigned',  -- an agent is chosen
    'leased',    -- that agent's session may crawl it
    'done',      -- an outcome of kind complete or truncated was accepted
    'failed',    -- an outcome of another kind was accepted, or it was given up
    'cancelled'  -- not to be crawled
);

-- One (batch, site, round).
create table tasks (
    id bigint primary key generated always as identity,
    batch_id bigint not null references batches (id),
    site_id bigint not null references sites (id),
    round integer not null default 1,
    state task_state not null default 'submitted',
    -- Why it waits, fell back, failed or was cancelled; null otherwise.
    reason text,
    -- The token of the newest grant; 0 before the first.
    token bigint not null default 0,
    -- The newest assignment.
    assignment_id bigint,
    -- When it entered its state.
    state_since timestamptz not null default now(),
    constraint tasks_unique unique (batch_id, site_id, round)
);
create index tasks_open on tasks (state, id) where state in ('submitted', 'measuring', 'located', 'assigned', 'leased');
create index tasks_by_site on tasks (site_id);
create index tasks_held on tasks (reason) where state in ('submitted', 'measuring') and reason is not null;

-- One choice of an agent for a task; a new choice is a new row.
create table assignments (
    id bigint primary key generated always as identity,
    task_id bigint not null references tasks (id),
    agent_id bigint not null references agents (id),
    -- The strategy that chose; differs from the batch's where `fallback_reason` is set.
    strategy text not null,
    -- The seed of the draw.
    seed bigint not null,
    -- The candidates, best first, and their round trips in microseconds; null where unknown.
    candidates bigint[] not null,
    predicted_us bigint[] not null,
    measured_us bigint[] not null,
    -- Why the batch's own strategy could not be followed; null otherwise.
    fallback_reason text,
    created_at timestamptz not null default now(),
    constraint assignments_candidates_parallel check (
        cardinality(candidates) = cardinality(predicted_us) and cardinality(candidates) = cardinality(measured_us)
    )
);
create index assignments_by_task on assignments (task_id);
alter table tasks add constraint tasks_assignment_exists foreign key (assignment_id) references assignments (id);
create index tasks_assigned on tasks (assignment_id) where state in ('assigned', 'leased');

create type lease_state as enum (
    'active',    -- the session may crawl
    'completed', -- its outcome was accepted
    'released',  -- handed back
    'expired'    -- its session was lost
);

-- An agent session's right to crawl a task's site.
create table leases (
    task_id bigint not null references tasks (id),
    -- The fence: rises by one per grant of the task.
    token bigint not null,
    -- Repeated from the task for `leases_one_per_site`.
    site_id bigint not null references sites (id),
    agent_id bigint not null references agents (id),
    session_id bigint not null references sessions (id),
    state lease_state not null default 'active',
    granted_at timestamptz not null default now(),
    ended_at timestamptz,
    primary key (task_id, token)
);
-- At most one task of a site is leased at a time, across batches.
create unique index leases_one_per_site on leases (site_id) where state = 'active';
create index leases_active_by_agent on leases (agent_id) where state = 'active';
create index leases_active_by_session on leases (session_id) where state = 'active';

-- What a finished crawl reported; at most one per task.
create table outcomes (
    task_id bigint primary key references tasks (id),
    token bigint not null,
    agent_id bigint not null references agents (id),
    -- complete | truncated | blocked | unreachable
    kind text not null constraint outcomes_kind_known check (kind in ('complete', 'truncated', 'blocked', 'unreachable')),
    -- pages | bytes | duration | depth, when truncated
    budget text,
    pages integer not null,
    bytes bigint not null,
    errors integer not null,
    -- By the agent's clock.
    started_at timestamptz not null,
    duration_ms bigint not null,
    -- Median time to first byte on warm connections; null when none was seen.
    rtt_us bigint,
    message text not null default '',
    accepted_at timestamptz not null default now(),
    constraint outcomes_of_a_lease foreign key (task_id, token) references leases (task_id, token)
);
create index outcomes_by_agent on outcomes (agent_id);

-- Orders to measure that have not been answered. One per site: that is what keeps a site to one probe a second
-- over all landmarks. One per pair of agents.
create table measurement_orders (
    id bigint primary key generated always as identity,
    prober_id bigint not null references agents (id),
    site_id bigint references sites (id),
    agent_id bigint references agents (id),
    -- The session it was sent on; null until sent.
    session_id bigint references sessions (id),
    created_at timestamptz not null default now(),
    -- After this an unanswered order is given up.
    expires_at timestamptz not null,
    constraint measurement_orders_one_target check ((site_id is null) <> (agent_id is null))
);
create unique index measurement_orders_one_per_site on measurement_orders (site_id) where site_id is not null;
create unique index measurement_orders_one_per_pair on measurement_orders (prober_id, agent_id) where agent_id is not null;
create index measurement_orders_unsent on measurement_orders (prober_id) where session_id is null;

-- The newest measurement of an agent's beacon by another agent.
create table mesh_measurements (
    prober_id bigint not null references agents (id),
    agent_id bigint not null references agents (id),
    -- The statistical weighted mean; null when nothing answered, and then `failure` says why.
    rtt_us bigint constraint mesh_measurements_rtt_positive check (rtt_us > 0),
    min_us bigint,
    median_us bigint,
    spread_us bigint,
    answered integer not null,
    lost integer not null,
    failure text,
    measured_at timestamptz not null default now(),
    primary key (prober_id, agent_id),
    constraint mesh_measurements_result check ((rtt_us is null) <> (failure is null))
);

-- The newest measurement of a site by an agent.
create table site_measurements (
    site_id bigint not null references sites (id),
    prober_id bigint not null references agents (id),
    -- As in mesh_measurements.
    rtt_us bigint constraint site_measurements_rtt_positive check (rtt_us > 0),
    min_us bigint,
    median_us bigint,
    spread_us bigint,
    answered integer not null,
    lost integer not null,
    failure text,
    -- The address that was connected; null when none was.
    address inet,
    -- Cold phases; null when not observed.
    dns_us bigint,
    connect_us bigint,
    tls_us bigint,
    measured_at timestamptz not null default now(),
    primary key (site_id, prober_id),
    constraint site_measurements_result check ((rtt_us is null) <> (failure is null))
);

-- Fits of the landmarks. Coordinates of different epochs never meet.
create table embeddings (
    epoch bigint primary key generated always as identity,
    dimensions integer not null,
    -- The landmarks it was fitted on, in order of choice.
    landmarks bigint[] not null,
    -- Root mean square of the landmarks' relative errors.
    fit_error double precision not null,
    created_at timestamptz not null default now()
);

-- Where an agent lies in an embedding; milliseconds: one a dimension, then the height.
create table agent_placements (
    epoch bigint not null references embeddings (epoch),
    agent_id bigint not null references agents (id),
    coordinate double precision[] not null,
    fit_error double precision not null,
    primary key (epoch, agent_id)
);

-- Where a site lies, in the newest embedding it was located in.
create table site_placements (
    site_id bigint primary key references sites (id),
    epoch bigint not null references embeddings (epoch),
    coordinate double precision[] not null,
    fit_error double precision not null,
    -- How many landmarks' measurements it rests on.
    landmarks integer not null,
    located_at timestamptz not null default now()
);
