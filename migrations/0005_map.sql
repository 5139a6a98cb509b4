-- The map: landmarks, the embeddings fitted to their round trips, and the placements of agents and
-- sites in an embedding.

-- Landmarks: the agents that measure sites, and that all other agents measure.
create table landmarks (
    -- The agent.
    agent_id bigint primary key references agents (id),
    -- The landmark's number in the order in which landmarks were chosen, from 0.
    position integer not null constraint landmarks_position_unique unique,
    -- A sentence for operators that says why the agent was chosen.
    reason text not null,
    -- Whether an election chose the landmark. If an elected landmark is lost, another agent is
    -- elected in its place.
    elected boolean not null default false,
    -- When the landmark was chosen.
    chosen_at timestamptz not null default now()
);

-- Embeddings: fits of the landmarks. Coordinates of different epochs are never compared.
create table embeddings (
    -- The embedding's number, higher than that of every earlier embedding.
    epoch bigint primary key generated always as identity,
    -- Number of dimensions of the coordinates, without the height.
    dimensions integer not null,
    -- The landmarks of the embedding, in the order in which they were chosen.
    landmarks bigint[] not null,
    -- Root mean square of the landmarks' relative errors.
    fit_error double precision not null,
    -- The median of |ln(predicted / measured)| over the mesh at the time of the fit; null if the
    -- mesh had no measurements.
    mesh_error double precision,
    -- When the measurements for the fit were read.
    created_at timestamptz not null default now()
);

-- The history: a row about each of the last 1000 embeddings. The row is kept after the embedding's
-- coordinates are deleted.
create table embedding_history (
    -- The embedding's number.
    epoch bigint primary key,
    -- When the measurements for the fit were read.
    fitted_at timestamptz not null,
    -- A sentence for operators that says why the embedding was fitted.
    reason text not null,
    -- Number of placed agents, including the landmarks.
    agents integer not null,
    -- Number of landmarks.
    landmarks integer not null,
    -- Number of dimensions, without the height.
    dimensions integer not null,
    fit_error double precision not null, -- same as embeddings.fit_error
    mesh_error double precision, -- same as embeddings.mesh_error
    -- The median distance between agents' coordinates in this embedding and in the former one,
    -- after alignment. Null if there was no former embedding.
    median_move_us bigint
);

-- Placements of agents: one row per agent and stored embedding.
create table agent_placements (
    -- The embedding.
    epoch bigint not null references embeddings (epoch),
    -- The agent.
    agent_id bigint not null references agents (id),
    -- The coordinates in milliseconds: one per dimension, then the height.
    coordinate double precision[] not null,
    -- Root mean square of the relative errors of the agent's predicted round trips.
    fit_error double precision not null,
    primary key (epoch, agent_id)
);

-- Placements of sites, each in the newest embedding in which the site was located.
create table site_placements (
    -- The site.
    site_id bigint primary key references sites (id),
    -- The embedding.
    epoch bigint not null references embeddings (epoch),
    -- The coordinates in milliseconds: one per dimension, then the height.
    coordinate double precision[] not null,
    -- Root mean square of the relative errors of the site's predicted round trips.
    fit_error double precision not null,
    -- Whether the site stays in its older embedding until it is located again, because no task
    -- needed the placement when a newer embedding was made.
    idle boolean not null default false,
    -- When the site was located.
    located_at timestamptz not null default now()
);
-- For finding the sites that must be located again in a newer embedding.
create index site_placements_outdated on site_placements (epoch, located_at) where not idle;
-- For checking, before an embedding is deleted, that no site is placed in it.
create index site_placements_of_epoch on site_placements (epoch);

-- Verdicts: for each site, the newest finding on whether the site stands in one place.
create table site_verdicts (
    -- The site.
    site_id bigint primary key references sites (id),
    -- Whether the site is suspected to stand in several places (anycast, CDN, GeoDNS).
    suspect boolean not null,
    -- The confidence in this suspicion, from 0 to 1; 0 if the site is not suspect.
    confidence double precision not null constraint site_verdicts_confidence_range check (confidence between 0 and 1),
    -- The evidence as a sentence for operators; empty if the site is not suspect.
    evidence text not null,
    -- When the verdict was found.
    judged_at timestamptz not null default now(),
    constraint site_verdicts_evidence_of_suspects check (suspect = (evidence <> ''))
);

-- An operator's request for a fit of the embedding; at most one row.
create table fit_requests (
    -- Always true; as the primary key, it permits only one row.
    singleton boolean primary key default true constraint fit_requests_one_row check (singleton),
    -- When the operator made the request.
    requested_at timestamptz not null default now(),
    -- A sentence for operators that says why no fit was possible; null while the request is open.
    refused text
);

-- Alarms: periods in which the map is not trusted. While an alarm is open, the last good embedding
-- stays in use, and agents are chosen at random.
create table trust_alarms (
    -- The alarm's identifier.
    id bigint primary key generated always as identity,
    -- A sentence for operators that says why the alarm was raised, with figures.
    reason text not null,
    -- When the alarm was raised.
    since timestamptz not null default now(),
    -- When the alarm ended; null while it is open.
    ended_at timestamptz
);
create unique index trust_alarms_one_open on trust_alarms ((true)) where ended_at is null;
