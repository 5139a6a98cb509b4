-- Since when a confirmation is wanted: who could do without one waits for it no longer than it is reckoned to take.
alter table wanted_confirmations
    add column wanted_at timestamptz not null default now();
