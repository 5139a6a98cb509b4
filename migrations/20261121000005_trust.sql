-- Whose measurements are not believed, and when the map as a whole is not.

-- While a quarantine is open nothing that the agent measured is used, and it is not asked to measure sites.
create table quarantines (
    id bigint primary key generated always as identity,
    agent_id bigint not null references agents (id),
    -- By which evidence: light, asymmetry, residual or sites.
    evidence text not null,
    -- For people, with figures.
    reason text not null,
    since timestamptz not null default now(),
    -- Judgements in a row, each on newer measurements of it, that found it consistent.
    consistent integer not null default 0,
    -- When the last judgement that counted was passed.
    judged_at timestamptz not null default now(),
    -- Null while it is open.
    released_at timestamptz,
    -- Why it was released, for people.
    released text,
    constraint quarantines_released_whole check ((released_at is null) = (released is null))
);
create unique index quarantines_one_open on quarantines (agent_id) where released_at is null;

-- While an alarm is open the last good embedding stays, and agents are chosen at random.
create table trust_alarms (
    id bigint primary key generated always as identity,
    -- For people, with figures.
    reason text not null,
    since timestamptz not null default now(),
    -- Null while it is open.
    ended_at timestamptz
);
create unique index trust_alarms_one_open on trust_alarms ((true)) where ended_at is null;
