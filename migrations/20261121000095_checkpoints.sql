-- How far crawls have come that are under way, so that another agent goes on with one instead of beginning anew.

create table checkpoints (
    task_id bigint primary key references tasks (id) on delete cascade,
    -- Of the lease whose agent sent it.
    token bigint not null,
    -- Pages fetched so far, by all agents that had the task.
    pages integer not null,
    -- Only agents read it.
    state bytea not null constraint checkpoints_at_most_a_megabyte check (octet_length(state) <= 1048576),
    saved_at timestamptz not null default now()
);
-- It is deflated already.
alter table checkpoints alter column state set storage external;

alter table outcomes
    -- Pages fetched once more, because the agent that had fetched them before could not hand over all it knew.
    add column refetched integer not null default 0,
    -- Links left out because they lead into traps.
    add column trapped integer not null default 0;
