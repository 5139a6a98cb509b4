-- Restores: a database that goes back in time must not give out a number twice, and says that it went back.

create table restores (
    id bigint primary key generated always as identity,
    restored_at timestamptz not null default now(),
    -- When the backup was made, and by which version of landfall.
    backed_up_at timestamptz not null,
    backup_version text not null,
    -- Every number given out before, in the backup or after it, is at most this: of tasks, leases, sessions, incarnations, events
    -- and all else. What is given out since is higher.
    floor bigint not null constraint restores_floor_positive check (floor > 0),
    -- What is added to the number of a transaction in `events`: another server counts its transactions anew.
    transactions bigint not null constraint restores_transactions_positive check (transactions > 0),
    -- Sessions that were ended by it, leases that ended with them, and enrolment tokens that were still open.
    sessions bigint not null,
    leases bigint not null,
    tokens bigint not null,
    -- When a scheduler that started told of it; null until then.
    told_at timestamptz
);

-- Not validated: what is there satisfies the narrower ones.
alter table events drop constraint events_noun_known;
alter table events add constraint events_noun_known
    check (noun in ('task', 'lease', 'session', 'agent', 'term', 'database')) not valid;
alter table sessions drop constraint sessions_end_cause_known;
alter table sessions add constraint sessions_end_cause_known check (
    end_cause in (
        'expired',    -- not renewed in time: its agent was lost
        'superseded', -- its agent connected anew
        'left',       -- its agent said goodbye
        'removed',    -- the operator removed its agent
        'restored'    -- the database went back to a moment in it
    )
) not valid;
