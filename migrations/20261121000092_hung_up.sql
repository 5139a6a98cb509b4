-- Agents whose stream broke: they may come back, or be dead.

-- When the stream broke without a goodbye; null while it is open, and where its scheduler died with it. A new stream is a new
-- session.
alter table sessions add column hung_up_at timestamptz;
