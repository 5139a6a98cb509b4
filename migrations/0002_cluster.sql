-- The cluster: schedulers that share this database, what only one of them does, and restores from
-- backups.

-- One row per running scheduler process, renewed several times in the life of a term.
create table schedulers (
    -- Its number.
    id bigint primary key generated always as identity,
    -- The address that agents dial.
    url text not null,
    -- The version of its program.
    version text not null default '',
    -- Free and all bytes of its data directory's file system, as of its last renewal; null when
    -- unknown.
    disk_free bigint,
    disk_size bigint, -- all bytes
    -- When it started.
    started_at timestamptz not null default now(),
    -- When it last renewed this row.
    renewed_at timestamptz not null default now(),
    -- The moment after which another scheduler may take its roles.
    expires_at timestamptz not null
);

create type role as enum (
    'reap', -- expire what was not renewed
    'fit',  -- fit the embedding
    'plan'  -- measure, choose agents, balance
);

-- One row per role. Every transaction of a role reads its row `for share`: a scheduler that takes
-- the term over waits for that transaction to end, and a scheduler that lost the term finds another
-- number.
create table terms (
    -- What only its holder does.
    role role primary key,
    -- The scheduler that has it; null: no scheduler.
    holder bigint references schedulers (id),
    -- Rises by one whenever a scheduler takes it, and never otherwise.
    number bigint not null default 0,
    -- When the newest term began; null before the first.
    taken_at timestamptz,
    -- While no scheduler has it: until when the role was done.
    served_until timestamptz
);
insert into terms (role) values ('reap'), ('fit'), ('plan');

-- Restores of this database from a backup: it must never give out a number twice, and schedulers
-- tell operators of it.
create table restores (
    -- Its number.
    id bigint primary key generated always as identity,
    -- When it was restored.
    restored_at timestamptz not null default now(),
    -- When the backup was made.
    backed_up_at timestamptz not null,
    -- The version of landfall that made the backup.
    backup_version text not null,
    -- Every number given out before, in the backup or after it, is at most this: of tasks, leases,
    -- sessions, incarnations, events and all else. Numbers given out since are higher.
    floor bigint not null constraint restores_floor_positive check (floor > 0),
    -- Added to the transaction numbers of `events`: another server counts its transactions from the
    -- start.
    transactions bigint not null constraint restores_transactions_positive check (transactions > 0),
    -- How many sessions it ended.
    sessions bigint not null,
    -- How many leases ended with them.
    leases bigint not null,
    -- How many open enrolment tokens it made void.
    tokens bigint not null,
    -- When a scheduler wrote of it in its log; null until then.
    told_at timestamptz
);
