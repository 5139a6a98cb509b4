-- Agents that take no more work, because an operator said so.

-- Since when it is granted and assigned nothing; null: it is in service.
alter table agents add column draining_since timestamptz;
-- When it was removed: its credential is refused, its history stays. Null: it was not.
alter table agents add column removed_at timestamptz;
