-- Agents that take no lease for a while, because they said so.

-- Why, in one sentence, as the last heartbeat said; null: it takes leases.
alter table sessions add column paused text;
