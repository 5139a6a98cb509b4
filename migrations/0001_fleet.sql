-- The fleet: its settings, its agents and their connections. Round trips end in `_us`
-- (microseconds), other lengths of time in `_ms`; a foreign key to a table of a later file is made
-- in that file.

-- Settings of the whole fleet; exactly one row.
create table settings (
    -- Always true: the key of the only row.
    singleton boolean primary key default true constraint settings_one_row check (singleton),
    -- The operator's address, part of every user agent; null until an operator sets one.
    contact_url text,
    -- Dimensions of the embedding that an operator asked for; null: min(8, landmarks - 1).
    dimensions integer constraint settings_dimensions_positive check (dimensions >= 1),
    -- SHA-256 of the operator's token.
    operator_token_hash bytea,
    -- SHA-256 of the token before it; null where the token was never replaced.
    former_operator_token_hash bytea,
    -- When the token was replaced.
    operator_token_replaced_at timestamptz,
    -- Until when the former token is accepted beside the new one.
    former_operator_token_until timestamptz,
    -- SHA-256 of the authority's certificate, hexadecimal; null until a scheduler listened off
    -- loopback. All schedulers of a database must show the same authority to its agents.
    ca_fingerprint text
);
insert into settings default values;

-- Agents: a crawler process in one city on one carrier.
create table agents (
    -- Its number.
    id bigint primary key generated always as identity,
    -- Its name; the agent of a name can be replaced by another machine. Sorted by bytes, so that the
    -- index finds names by their beginning.
    name text collate "C" not null constraint agents_name_unique unique,
    -- The city, for people and for the choice of landmarks.
    city text not null,
    -- The network it is connected to.
    carrier text not null,
    -- ISO 3166-1 alpha-2; empty when unknown.
    country text not null default '',
    -- Its position, in degrees; null unless the operator gave one.
    latitude double precision constraint agents_latitude_range check (latitude between -90 and 90),
    longitude double precision constraint agents_longitude_range check (longitude between -180 and 180), -- as latitude
    -- Words that batches may ask for: lower case, sorted.
    tags text[] not null default '{}' constraint agents_tags_bounded check (cardinality(tags) <= 16),
    -- Sites it crawls at once.
    capacity integer not null default 1 constraint agents_capacity_range check (capacity between 1 and 10000),
    -- The version of its program; empty before its first session.
    version text not null default '',
    -- Where its beacon is reached; null when it runs none.
    beacon_url text,
    -- SHA-256 of its credential.
    credential_hash bytea not null constraint agents_credential_unique unique,
    -- SHA-256 of the credential before it: the machine that presents it is told that another was
    -- enrolled in its place.
    former_credential_hash bytea,
    -- When another machine was enrolled in its place; null where none was.
    replaced_at timestamptz,
    -- The number of its newest session; rises by one with each.
    incarnation bigint not null default 0,
    -- When it was enrolled.
    enrolled_at timestamptz not null default now(),
    -- Since when the operator has it drain: it is granted and assigned nothing. Null: it is in
    -- service.
    draining_since timestamptz,
    -- When the operator removed it: its credential is refused, its history stays. Null: it is not
    -- removed.
    removed_at timestamptz,
    constraint agents_position_whole check ((latitude is null) = (longitude is null))
);
create index agents_by_former_credential on agents (former_credential_hash) where former_credential_hash is not null;

-- One-time enrolment tokens: each is good for one agent, once.
create table enrolments (
    -- SHA-256 of the token.
    token_hash bytea primary key,
    -- The name, place and tags that the agent gets, as in agents.
    agent_name text collate "C" not null,
    city text not null, -- as in agents
    carrier text not null, -- as in agents
    country text not null default '', -- as in agents
    latitude double precision constraint enrolments_latitude_range check (latitude between -90 and 90), -- as in agents
    longitude double precision constraint enrolments_longitude_range check (longitude between -180 and 180), -- as in agents
    tags text[] not null default '{}' constraint enrolments_tags_bounded check (cardinality(tags) <= 16), -- as in agents
    -- Whether it may replace an agent of this name that is in use.
    replaces boolean not null default false,
    -- When the operator made it.
    created_at timestamptz not null default now(),
    -- Until when it can be used.
    expires_at timestamptz not null,
    -- When an agent used it; null until then.
    used_at timestamptz,
    -- When the operator revoked it; null unless they did.
    revoked_at timestamptz,
    constraint enrolments_position_whole check ((latitude is null) = (longitude is null))
);
-- Enrolments are deleted some time after their end.
create index enrolments_by_end on enrolments (expires_at);
create index enrolments_by_name on enrolments (agent_name);

create type session_state as enum (
    'active',  -- renewed by heartbeats
    'expired', -- not renewed in time: its leases were taken back
    'closed'   -- ended otherwise: end_cause says how
);

create type session_end as enum (
    'expired',     -- not renewed in time: its agent was lost
    'superseded',  -- another process connected with its agent's credential
    'reconnected', -- its process connected again
    'replaced',    -- another machine was enrolled in its agent's place
    'left',        -- its agent said goodbye
    'removed',     -- the operator removed its agent
    'restored'     -- the database was restored from a backup
);

-- One row per connection of an agent; a heartbeat updates this row alone.
create table sessions (
    -- Its number.
    id bigint primary key generated always as identity,
    -- The agent that connected.
    agent_id bigint not null references agents (id),
    -- Its number among the agent's sessions: the highest one wins.
    incarnation bigint not null,
    -- What the agent's process drew at random when it started: tells a reconnection from a second
    -- process. Null of agents that send none.
    process bigint,
    -- The address its agent is seen at; null when unknown.
    address inet,
    -- Whether it is renewed, or how it ended.
    state session_state not null default 'active',
    -- When it was opened.
    opened_at timestamptz not null default now(),
    -- When its last heartbeat came.
    renewed_at timestamptz not null default now(),
    -- The moment after which it may be expired: last renewal + life + grace.
    expires_at timestamptz not null,
    -- When its stream broke without a goodbye; null while it is open, and where its scheduler died
    -- with it.
    disconnected_at timestamptz,
    -- Why its agent takes no lease for a while, one sentence of the last heartbeat; null: it takes
    -- leases.
    paused text,
    -- Free slots in the last heartbeat; null until one reports them.
    free_slots integer,
    -- Crawls under way, as of the last heartbeat, with those that were being stopped.
    crawls integer,
    -- Outcomes that waited to be acknowledged, as of the last heartbeat.
    outcomes_waiting integer,
    -- By how many seconds its agent's clock is ahead of the scheduler's, as of the last heartbeat;
    -- null until one reports its time.
    clock_ahead_s integer,
    -- Free and all bytes of the fullest disk that its agent writes to, as of the last heartbeat;
    -- null until one reports them.
    disk_free bigint,
    disk_size bigint, -- all bytes
    -- Why it ended; null while it is active.
    end_cause session_end,
    -- When it ended; null while it is active.
    ended_at timestamptz,
    constraint sessions_incarnation_unique unique (agent_id, incarnation)
);
create unique index sessions_one_active on sessions (agent_id) where state = 'active';
-- Sessions that ended are deleted some time later.
create index sessions_ended on sessions (ended_at) where ended_at is not null;
-- A connecting agent's recent supersessions are counted through this index.
create index sessions_superseded on sessions (agent_id, ended_at) where end_cause = 'superseded';

-- Why a message was refused.
create type refusal_kind as enum (
    'unknown-task',     -- an outcome of a task that does not exist
    'foreign-lease',    -- of a lease that another agent was granted
    'forged-token',     -- of a token that was never granted
    'restored',         -- of a number given out after the backup that was restored
    'old-token',        -- of a token after which a newer one was granted
    'ended-task',       -- of a task that ended without this outcome
    'contradiction',    -- an outcome that was accepted before, with other content
    'future-heartbeat', -- a heartbeat with a sequence number too high for its session
    'flapping',         -- a connection of an agent whose sessions superseded each other too often
    'twin'              -- a connection of a second process while the first one is connected
);

-- Messages of agents that were refused, counted by agent and kind. A refused message changes
-- nothing else.
create table refusals (
    -- The agent that sent them.
    agent_id bigint not null references agents (id),
    -- Why they were refused.
    kind refusal_kind not null,
    -- How many there were.
    times bigint not null default 1,
    -- When the first and the last one came.
    first_at timestamptz not null default now(),
    last_at timestamptz not null default now(), -- the last one
    -- What the last one was, for people.
    detail text not null,
    primary key (agent_id, kind)
);
