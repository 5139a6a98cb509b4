-- Poison: a task whose crawls end with their agents is given up, so that it does not take the fleet down one by one.

-- Crawls of this round that crashed: the lease was lost with its agent, or the agent says that the crawl panicked. What is
-- handed back is not counted.
alter table tasks add column crashes integer not null default 0;

-- Why the session ended; null while it is active, and of sessions older than this column.
alter table sessions add column end_cause text constraint sessions_end_cause_known check (
    end_cause in (
        'expired',    -- not renewed in time: its agent was lost
        'superseded', -- its agent connected anew
        'left',       -- its agent said goodbye
        'removed'     -- the operator removed its agent
    )
);
-- When; null as above.
alter table sessions add column ended_at timestamptz;

-- What the crawl crashed with, as its agent says; null of every other lease.
alter table leases add column crash text;
