-- Cancelling and retrying: an operator changes what is done about a batch.

-- 'revoked': its task was cancelled. Used by no index of this migration: Postgres wants a new value committed first.
alter type lease_state add value 'revoked';

-- When its agent was told that the lease is revoked; null until then, and of every other lease.
alter table leases add column revocation_sent_at timestamptz;

-- When the next round of this task was made; null: this is its newest round. A recrawl is a new round, and what the
-- former one came to stays.
alter table tasks add column retried_at timestamptz;
