-- What an assignment needs to be explained by: how full the candidates were, and who was excluded.

-- Agents that a batch's constraints excluded when it was chosen for. Most choices of a batch share one row.
create table exclusions (
    id bigint primary key generated always as identity,
    batch_id bigint not null references batches (id),
    agents bigint[] not null,
    -- Parallel: country, carrier, tag:NAME or quota.
    causes text[] not null,
    created_at timestamptz not null default now(),
    constraint exclusions_parallel check (cardinality(agents) = cardinality(causes))
);
create index exclusions_newest on exclusions (batch_id, id);

alter table assignments
    -- Load levels of the candidates when it was made, parallel to them; null for one that was away, and as a whole from before there
    -- were any.
    add column levels bigint[],
    -- Agents that took work then and were not excluded, candidates or not.
    add column available integer,
    add column exclusions_id bigint constraint assignments_exclusions_exist references exclusions (id),
    add constraint assignments_levels_parallel check (cardinality(candidates) = cardinality(levels));
