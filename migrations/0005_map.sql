-- The map: landmarks, the embedding fitted on their round trips, and where agents and sites lie in
-- it.

-- The agents that all other agents, and sites, are measured from.
create table landmarks (
    -- The agent.
    agent_id bigint primary key references agents (id),
    -- Order of choice, from 0.
    position integer not null constraint landmarks_position_unique unique,
    -- Why it was chosen, for people.
    reason text not null,
    -- Whether an election chose it: then another is elected in its place when it is lost.
    elected boolean not null default false,
    -- When it was chosen.
    chosen_at timestamptz not null default now()
);

-- Fits of the landmarks. Coordinates of different epochs are never compared.
create table embeddings (
    -- Its number, higher than any earlier one.
    epoch bigint primary key generated always as identity,
    -- Dimensions of its coordinates, without the height.
    dimensions integer not null,
    -- The landmarks it was fitted on, in order of choice.
    landmarks bigint[] not null,
    -- Root mean square of the landmarks' relative errors.
    fit_error double precision not null,
    -- The median of |ln(predicted / measured)| over the mesh it was fitted on.
    mesh_error double precision,
    -- When it was fitted.
    created_at timestamptz not null default now()
);

-- The figures of every embedding, kept after its coordinates are deleted.
create table embedding_history (
    -- Its number, as in embeddings.
    epoch bigint primary key,
    -- When it was fitted.
    fitted_at timestamptz not null,
    -- Why it was fitted, for people.
    reason text not null,
    -- How many agents it placed, with the landmarks.
    agents integer not null,
    -- How many landmarks it was fitted on.
    landmarks integer not null,
    -- Its dimensions and errors, as in embeddings.
    dimensions integer not null,
    fit_error double precision not null, -- as in embeddings
    mesh_error double precision, -- as in embeddings
    -- How far the median agent moved from the embedding before, after alignment; null without one
    -- before.
    median_move_us bigint
);

-- Where an agent lies in an embedding.
create table agent_placements (
    -- The embedding.
    epoch bigint not null references embeddings (epoch),
    -- The agent.
    agent_id bigint not null references agents (id),
    -- Milliseconds: one a dimension, then the height.
    coordinate double precision[] not null,
    -- Root mean square of the relative errors of its round trips.
    fit_error double precision not null,
    primary key (epoch, agent_id)
);

-- Where a site lies, in the newest embedding it was located in.
create table site_placements (
    -- The site.
    site_id bigint primary key references sites (id),
    -- The embedding.
    epoch bigint not null references embeddings (epoch),
    -- Milliseconds: one a dimension, then the height.
    coordinate double precision[] not null,
    -- Root mean square of the relative errors of its round trips.
    fit_error double precision not null,
    -- No task needed it when a newer embedding came: it stays in its own until the site is located
    -- anew.
    idle boolean not null default false,
    -- When it was located.
    located_at timestamptz not null default now()
);
-- Placements to carry over into a newer embedding.
create index site_placements_outdated on site_placements (epoch, located_at) where not idle;
-- Whether an embedding that is to be deleted still has sites.
create index site_placements_of_epoch on site_placements (epoch);

-- Whether a site stands in one place, as its landmarks' measurements say; the newest judgement.
create table site_verdicts (
    -- The site.
    site_id bigint primary key references sites (id),
    -- Suspected to stand in several places: anycast, CDN, GeoDNS.
    suspect boolean not null,
    -- 0 to 1; 0 where it is not suspect.
    confidence double precision not null constraint site_verdicts_confidence_range check (confidence between 0 and 1),
    -- The evidence, for people; empty where it is not suspect.
    evidence text not null,
    -- When it was judged.
    judged_at timestamptz not null default now(),
    constraint site_verdicts_evidence_of_suspects check (suspect = (evidence <> ''))
);

-- An operator's request to fit now; at most one row.
create table fit_requests (
    -- Always true: the key of the only row.
    singleton boolean primary key default true constraint fit_requests_one_row check (singleton),
    -- When it was made.
    requested_at timestamptz not null default now(),
    -- Why there was no fit, for people; null while it is open.
    refused text
);

-- Times at which the map as a whole is not trusted: while an alarm is open the last good embedding
-- stays, and agents are chosen at random.
create table trust_alarms (
    -- Its number.
    id bigint primary key generated always as identity,
    -- What is wrong, for people, with figures.
    reason text not null,
    -- When it began.
    since timestamptz not null default now(),
    -- When it ended; null while it is open.
    ended_at timestamptz
);
create unique index trust_alarms_one_open on trust_alarms ((true)) where ended_at is null;
