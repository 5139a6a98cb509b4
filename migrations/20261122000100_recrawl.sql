-- Recrawls: a batch may have its sites crawled again some time after each crawl, as a new round.

alter table batches
    -- From the end of a site's crawl to its next one; null: there is none.
    add column recrawl_interval_ms bigint
        constraint batches_recrawl_interval_range check (recrawl_interval_ms between 3600000 and 31536000000);

-- When the next round is due; null while this one has not ended, where there is no next, and once there is one.
alter table tasks add column recrawl_at timestamptz;
-- Those that are due are found without a look at any other: of a batch that is crawled again weekly nearly all wait. Not built
-- concurrently, for the reason of `20261121000081_tasks_of_agents`; there is nothing to be put into it yet.
create index tasks_to_recrawl on tasks (recrawl_at) where recrawl_at is not null;
