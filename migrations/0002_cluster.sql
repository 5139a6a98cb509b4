-- The cluster: the schedulers that share this database, the roles (each held by only one scheduler
-- at a time), and restores from backups.

-- Schedulers: one row per running process. The process renews its row several times before the row
-- can expire.
create table schedulers (
    -- The scheduler's identifier.
    id bigint primary key generated always as identity,
    -- The URL to which agents connect.
    url text not null,
    -- The version of the scheduler's program.
    version text not null default '',
    -- Free bytes of the file system that contains the scheduler's data directory, as of the last
    -- renewal; null if unknown.
    disk_free bigint,
    disk_size bigint, -- total bytes of the data directory's file system
    -- When the scheduler started.
    started_at timestamptz not null default now(),
    -- When the scheduler last renewed this row.
    renewed_at timestamptz not null default now(),
    -- The time after which other schedulers may take this scheduler's roles.
    expires_at timestamptz not null
);

create type role as enum (
    'reap', -- end expired sessions and leases, and delete old events
    'fit',  -- make the map: elect landmarks, fit embeddings, quarantine agents
    'plan'  -- assign tasks to agents: measure, locate, confirm, assign
);

-- Terms: one row per role. Every transaction that acts in a role locks the role's row `for share`.
-- A scheduler that takes the role waits until these transactions have ended. A scheduler that has
-- lost the role finds another number in the row.
create table terms (
    -- The role.
    role role primary key,
    -- The scheduler that has the role; null if no scheduler has it.
    holder bigint references schedulers (id),
    -- The number of the newest term. Each time a scheduler takes the role, the number rises by one;
    -- otherwise it never changes.
    number bigint not null default 0,
    -- When the newest term began; null before the first term.
    taken_at timestamptz,
    -- When the newest term ended; null while a scheduler has the role, and before the first term.
    served_until timestamptz
);
insert into terms (role) values ('reap'), ('fit'), ('plan');

-- Each row is a restore of this database from a backup. After a restore, schedulers must not reissue
-- an identifier, token or incarnation that was issued after the backup. Schedulers also report the
-- restore to operators.
create table restores (
    -- The restore's identifier.
    id bigint primary key generated always as identity,
    -- When the database was restored.
    restored_at timestamptz not null default now(),
    -- When the backup was made.
    backed_up_at timestamptz not null,
    -- The version of landfall that made the backup.
    backup_version text not null,
    -- No identifier, token or incarnation issued before the restore is higher than this number. All
    -- those issued after the restore are higher than this number.
    floor bigint not null constraint restores_floor_positive check (floor > 0),
    -- This number is added to the server's transaction numbers in the column `events.xact`. A new
    -- server counts its transactions from 1, but its events must sort after the restored events.
    transactions bigint not null constraint restores_transactions_positive check (transactions > 0),
    -- Number of sessions that the restore ended.
    sessions bigint not null,
    -- Number of leases that the restore ended.
    leases bigint not null,
    -- Number of open enrolment tokens that the restore voided.
    tokens bigint not null,
    -- When a scheduler reported the restore in its log; null until then.
    told_at timestamptz
);
