-- More of a crawl policy. What a scheduler of the former release leaves out is as it was.
alter table batches
    -- The least time between two requests to a large site; null: request_interval_ms. Not longer than that.
    add column shortest_interval_ms bigint
        constraint batches_shortest_interval_not_negative check (shortest_interval_ms >= 0),
    -- Whether sitemaps are read.
    add column sitemaps boolean not null default true,
    -- Whether agents that store pages store these.
    add column store boolean not null default true,
    -- Patterns of paths, as in robots.txt: which links are followed (none: all), and which are not.
    add column include text[] not null default '{}'
        constraint batches_include_bounded check (cardinality(include) <= 50),
    add column exclude text[] not null default '{}'
        constraint batches_exclude_bounded check (cardinality(exclude) <= 50),
    -- Goes into the user agent of these crawls; null: the fleet's.
    add column contact_url text;
