-- The cluster: the schedulers that share this database, the roles (each held by only one scheduler
-- at a time), the database's histories, and restores from backups.

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

create type history_cause as enum (
    'created',  -- the database was created
    'restored', -- the database was restored from a backup
    'promoted', -- a server was promoted, or recovered to a point in time, so its timeline is new
    'copied'    -- the rows were copied to another server or database
);

-- The histories of this database, one row per history. A history ends where transactions may have
-- been lost: the lost transactions issued numbers that agents and operators have seen. The newest
-- history is the one with the highest floor.
create table histories (
    -- A random number, which leases contain. Two databases that continued from the same rows have
    -- different histories.
    id bigint primary key default ('x' || right(replace(gen_random_uuid()::text, '-', ''), 15))::bit(60)::bigint
        constraint histories_id_positive check (id > 0),
    -- Why the history began.
    cause history_cause not null,
    -- When the history began.
    began_at timestamptz not null default now(),
    -- No identifier, token, incarnation or transaction number issued before this history is higher
    -- than this number. All those issued in this history are higher.
    floor bigint not null constraint histories_floors_differ unique constraint histories_floor_not_negative check (floor >= 0),
    -- The identifier of the server's files; null until the first scheduler connects. The same for a
    -- server and its standbys.
    server bigint,
    -- The timeline of the server, which rises when a standby is promoted; null until the first
    -- scheduler connects.
    timeline bigint,
    -- The number of the database on the server; null until the first scheduler connects.
    database bigint
);
insert into histories (cause, floor) values ('created', 0);

-- Each row is a restore of this database from a backup, which schedulers report to operators.
create table restores (
    -- The restore's identifier.
    id bigint primary key generated always as identity,
    -- When the database was restored.
    restored_at timestamptz not null default now(),
    -- When the backup was made.
    backed_up_at timestamptz not null,
    -- The version of landfall that made the backup.
    backup_version text not null,
    -- Number of sessions that the restore ended.
    sessions bigint not null,
    -- Number of leases that the restore ended.
    leases bigint not null,
    -- Number of open enrolment tokens that the restore voided.
    tokens bigint not null,
    -- When a scheduler reported the restore in its log; null until then.
    told_at timestamptz
);
