-- Several schedulers on one database: who they are, and which of them does what only one may do.

-- One row per running scheduler process, renewed several times in the life of a term.
create table schedulers (
    id bigint primary key generated always as identity,
    -- As agents dial it.
    url text not null,
    started_at timestamptz not null default now(),
    renewed_at timestamptz not null default now(),
    -- The moment after which others may take its duties.
    expires_at timestamptz not null
);

-- One row per duty. Every transaction of a duty reads its row `for share`: whoever takes the term over waits for it to
-- end, and whoever was deposed finds another number.
create table terms (
    duty text primary key constraint terms_duty_known check (duty in ('reap', 'fit', 'plan')),
    -- The scheduler that has it; null: nobody.
    holder bigint references schedulers (id),
    -- Rises by one whenever somebody takes it, and never otherwise.
    number bigint not null default 0,
    -- When the newest term began; null: there was none yet.
    taken_at timestamptz,
    -- While nobody has it: until when the duty was done.
    served_until timestamptz
);

insert into terms (duty) values ('reap'), ('fit'), ('plan');
