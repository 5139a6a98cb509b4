-- The fleet: its settings, its agents and their sessions. The names of columns that contain round
-- trips end in `_us` (microseconds), and those of other durations in `_ms` (milliseconds). A
-- foreign key to a table of a later file is added in that later file.

-- Settings of the whole fleet; exactly one row.
create table settings (
    -- Always true; as the primary key, it permits only one row.
    singleton boolean primary key default true constraint settings_one_row check (singleton),
    -- The contact URL, which every User-Agent header contains; null until an operator sets it.
    contact_url text,
    -- The number of dimensions of the embedding, as set by an operator. Null means
    -- min(8, landmarks - 1).
    dimensions integer constraint settings_dimensions_positive check (dimensions >= 1),
    -- SHA-256 of the operator's token; null until the first scheduler starts.
    operator_token_hash bytea,
    -- SHA-256 of the operator's former token; null if the token was never replaced.
    former_operator_token_hash bytea,
    -- When the former token was replaced; null if there is none.
    operator_token_replaced_at timestamptz,
    -- The former token is also accepted until this time; null if there is none.
    former_operator_token_until timestamptz,
    -- SHA-256 of the certificate of the certificate authority (CA) that agents trust, hexadecimal.
    -- Null until a scheduler listens on an address other than loopback. All schedulers of a
    -- database must use the same authority.
    ca_fingerprint text
);
insert into settings default values;

-- Agents: each is a crawler process in one city and on one carrier.
create table agents (
    -- The agent's identifier.
    id bigint primary key generated always as identity,
    -- The agent's name, which the agent keeps when it moves to another machine. Names are sorted by
    -- their bytes, so that an index finds all names with a given prefix.
    name text collate "C" not null constraint agents_name_unique unique,
    -- The agent's city, for display and for the choice of landmarks.
    city text not null,
    -- The network operator that connects the agent to the Internet.
    carrier text not null,
    -- The agent's country, ISO 3166-1 alpha-2; empty if unknown.
    country text not null default '',
    -- The agent's latitude in degrees; null unless the operator gave a position.
    latitude double precision constraint agents_latitude_range check (latitude between -90 and 90),
    longitude double precision constraint agents_longitude_range check (longitude between -180 and 180), -- longitude in degrees
    -- The agent's tags: lower case, sorted.
    tags text[] not null default '{}' constraint agents_tags_bounded check (cardinality(tags) <= 16),
    -- The agent's number of slots: its maximum number of concurrent crawls.
    capacity integer not null default 1 constraint agents_capacity_range check (capacity between 1 and 10000),
    -- The version of the agent's program; empty before the agent's first session.
    version text not null default '',
    -- The URL of the agent's beacon; null if the agent runs no beacon.
    beacon_url text,
    -- SHA-256 of the agent's credential.
    credential_hash bytea not null constraint agents_credential_unique unique,
    -- SHA-256 of the agent's former credential; null if there is none. A machine that still uses
    -- the former credential gets the message that another machine was enrolled in its place.
    former_credential_hash bytea,
    -- When another machine was enrolled under the agent's name; null if that did not happen.
    replaced_at timestamptz,
    -- The incarnation of the agent's newest session. Each new session raises it by one.
    incarnation bigint not null default 0,
    -- When the agent was enrolled.
    enrolled_at timestamptz not null default now(),
    -- When the agent's drain began; null if the agent is not draining. A draining agent gets no
    -- tasks and no leases.
    draining_since timestamptz,
    -- When the operator removed the agent; null if the agent was not removed. A removed agent's
    -- credential is refused, but its history is kept.
    removed_at timestamptz,
    constraint agents_position_whole check ((latitude is null) = (longitude is null))
);
create index agents_by_former_credential on agents (former_credential_hash) where former_credential_hash is not null;

-- Enrolment tokens. Each token enrols one agent, and can be used only once.
create table enrolments (
    -- SHA-256 of the token.
    token_hash bytea primary key,
    -- The name that the agent gets. This column and the next six are copied to the table agents.
    agent_name text collate "C" not null,
    city text not null, -- copied to agents.city
    carrier text not null, -- copied to agents.carrier
    country text not null default '', -- copied to agents.country
    -- Copied to agents.latitude.
    latitude double precision constraint enrolments_latitude_range check (latitude between -90 and 90),
    -- Copied to agents.longitude.
    longitude double precision constraint enrolments_longitude_range check (longitude between -180 and 180),
    tags text[] not null default '{}' constraint enrolments_tags_bounded check (cardinality(tags) <= 16), -- copied to agents.tags
    -- Whether the token may replace an agent of this name that was not removed.
    replaces boolean not null default false,
    -- When the operator made the token.
    created_at timestamptz not null default now(),
    -- When the token expires.
    expires_at timestamptz not null,
    -- When an agent used the token; null if no agent has used it.
    used_at timestamptz,
    -- When the operator revoked the token; null if it was not revoked.
    revoked_at timestamptz,
    constraint enrolments_position_whole check ((latitude is null) = (longitude is null))
);
-- For the job that deletes tokens some time after they expired.
create index enrolments_by_end on enrolments (expires_at);
create index enrolments_by_name on enrolments (agent_name);

create type session_state as enum (
    'active',  -- the session is renewed by heartbeats
    'expired', -- the session was not renewed in time, and its leases are released
    'closed'   -- the session ended in another way; see end_cause
);

create type session_end as enum (
    'expired',     -- the session was not renewed in time, so its agent is considered lost
    'superseded',  -- another process connected with the agent's credential
    'reconnected', -- the same process connected again
    'replaced',    -- another machine was enrolled in the agent's place
    'left',        -- the agent ended the session itself
    'removed',     -- the operator removed the agent
    'restored'     -- the database was restored from a backup
);

-- Sessions: one row per connection of an agent. A heartbeat updates only this row.
create table sessions (
    -- The session's identifier.
    id bigint primary key generated always as identity,
    -- The agent that connected.
    agent_id bigint not null references agents (id),
    -- The session's number among the sessions of this agent. Only the session with the highest
    -- number is valid.
    incarnation bigint not null,
    -- A random number that the agent's process drew when it started. It distinguishes a
    -- reconnection from a second process. Null if the agent sent no such number.
    process bigint,
    -- The agent's address as the scheduler observed it; null if unknown.
    address inet,
    -- Whether the session is active, or how it ended.
    state session_state not null default 'active',
    -- When the session was opened.
    opened_at timestamptz not null default now(),
    -- When the last heartbeat arrived.
    renewed_at timestamptz not null default now(),
    -- When the session expires unless it is renewed: last renewal + lifetime + grace period.
    expires_at timestamptz not null,
    -- When the session's stream broke before the agent ended the session. Null if the stream is
    -- open, or if the scheduler died when the stream broke.
    disconnected_at timestamptz,
    -- Why the agent takes no leases at present, as a sentence in the last heartbeat; null if the
    -- agent takes leases.
    paused text,
    -- Number of free slots in the last heartbeat; null until a heartbeat reports this number.
    free_slots integer,
    -- Number of active crawls in the last heartbeat, including crawls that were being stopped.
    crawls integer,
    -- Number of outcomes that waited to be acknowledged, as reported in the last heartbeat.
    outcomes_waiting integer,
    -- Seconds by which the agent's clock was ahead of the database's clock at the last heartbeat;
    -- null until a heartbeat contains the agent's time.
    clock_ahead_s integer,
    -- Free bytes of the fullest disk to which the agent writes, as reported in the last heartbeat;
    -- null until a heartbeat reports them.
    disk_free bigint,
    disk_size bigint, -- total bytes of the fullest disk
    -- Why the session ended; null while it is active.
    end_cause session_end,
    -- When the session ended; null while it is active.
    ended_at timestamptz,
    constraint sessions_incarnation_unique unique (agent_id, incarnation)
);
create unique index sessions_one_active on sessions (agent_id) where state = 'active';
-- For the job that deletes sessions some time after they ended.
create index sessions_ended on sessions (ended_at) where ended_at is not null;
-- When an agent connects, its recently superseded sessions are counted through this index.
create index sessions_superseded on sessions (agent_id, ended_at) where end_cause = 'superseded';

-- Why an agent's message was refused.
create type refusal_kind as enum (
    'unknown-task',     -- an outcome of a task that does not exist
    'foreign-lease',    -- a report on a lease that was granted to another agent
    'forged-token',     -- a report with a token that was never granted
    'lost-history',     -- a report on a lease of a history that the database has lost
    'old-token',        -- a report with a token older than the task's newest token
    'ended-task',       -- an outcome of a task that has ended in another way
    'contradiction',    -- an outcome that differs from the accepted outcome of the same lease
    'future-heartbeat', -- a heartbeat with a sequence number too high for the age of its session
    'flapping',         -- a connection of an agent whose sessions superseded each other too often
    'twin'              -- a connection of an agent's second process while the first is connected
);

-- Refused messages of agents, counted by agent and kind. A refused message changes nothing else.
create table refusals (
    -- The agent that sent the messages.
    agent_id bigint not null references agents (id),
    -- Why the messages were refused.
    kind refusal_kind not null,
    -- Number of refused messages.
    times bigint not null default 1,
    -- When the first message was refused.
    first_at timestamptz not null default now(),
    last_at timestamptz not null default now(), -- when the last message was refused
    -- A sentence for operators that describes the last refused message.
    detail text not null,
    primary key (agent_id, kind)
);
