-- Why embeddings were fitted and what came of it; who may be replaced among the landmarks.

-- The median of |ln(predicted / measured)| over the mesh it was fitted on; null in rows from before this migration.
alter table embeddings add column mesh_error double precision;

-- What is remembered of every embedding, long after its coordinates are gone.
create table embedding_history (
    epoch bigint primary key,
    fitted_at timestamptz not null,
    -- Why it was fitted, for people.
    reason text not null,
    -- How many agents it placed, landmarks among them.
    agents integer not null,
    landmarks integer not null,
    dimensions integer not null,
    -- Root mean square of the landmarks' relative errors.
    fit_error double precision not null,
    -- As in embeddings.
    mesh_error double precision,
    -- How far the median agent lies from where the former embedding had it, after alignment; null without a former one.
    median_move_us bigint
);
insert into embedding_history (epoch, fitted_at, reason, agents, landmarks, dimensions, fit_error)
select epoch, created_at, 'fitted before reasons were kept',
       (select count(*)::integer from agent_placements placed where placed.epoch = embeddings.epoch),
       cardinality(landmarks), dimensions, fit_error
from embeddings;

-- An operator asks for a fit now; at most one row.
create table fit_requests (
    singleton boolean primary key default true constraint fit_requests_one_row check (singleton),
    requested_at timestamptz not null default now(),
    -- Why it cannot be; null while it is open.
    refused text
);

-- Whether an election chose it: then another may be elected in its place when it is lost.
alter table landmarks add column elected boolean not null default false;
