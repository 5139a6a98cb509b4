-- What agents said and was refused, counted by kind: nothing else was changed by it.
create table refusals (
    agent_id bigint not null references agents (id),
    -- One of the names of `store::refusals::Refusal`.
    kind text not null,
    times bigint not null default 1,
    first_at timestamptz not null default now(),
    last_at timestamptz not null default now(),
    -- The last one, for people.
    detail text not null,
    primary key (agent_id, kind)
);

-- How often an agent superseded itself lately is looked at when it connects.
create index sessions_superseded on sessions (agent_id, ended_at) where end_cause = 'superseded';
