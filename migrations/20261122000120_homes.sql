-- Where agents and sites stand, for the strategies that go by it, and how long crawls were predicted to take.
alter table sessions
    -- The address its agent is seen at; null in rows of a former release.
    add column address inet;
alter table assignments
    -- How long the crawl was predicted to take; null where the strategy does not ask.
    add column crawl_ms bigint constraint assignments_crawl_not_negative check (crawl_ms >= 0);
