-- Sites, their addresses and where they stand.

create type position_source as enum (
    'list', -- a submitted list
    'geoip' -- the GeoIP file, by its address
);

-- Web origins that batches crawl. A site is stored once, however many batches have it.
create table sites (
    -- Its number.
    id bigint primary key generated always as identity,
    -- As submitted, canonical: a bare host, or scheme://host:port. Sorted as the names of agents.
    name text collate "C" not null constraint sites_name_unique unique,
    -- scheme://host:port; null until a measurement or a crawl has settled it.
    origin text,
    -- For an alias, the site that represents the same origin; null for a site that is no alias.
    alias_of bigint references sites (id),
    -- The address at which an agent measured it last, or that two agree on; null until one has.
    address inet,
    -- The address to which its last crawl sent requests, or the network whose sites share one
    -- budget. Null before a crawl. The number of sites at an address limits the crawls there.
    crawled_address inet,
    -- Where it stands, in degrees; null when unknown.
    latitude double precision,
    longitude double precision, -- as latitude
    -- The source of its position; list outweighs geoip.
    position_source position_source,
    -- Crawls in a row whose round trip contradicted what was known.
    contradictions integer not null default 0,
    -- Measurements before this do not count, because crawls contradicted them; null without
    -- contradictions.
    doubted_at timestamptz,
    constraint sites_position_whole check (
        (latitude is null) = (position_source is null) and (longitude is null) = (position_source is null)
    )
);
create unique index sites_one_per_origin on sites (origin) where alias_of is null;
create index sites_aliases on sites (alias_of, id) where alias_of is not null;
create index sites_by_crawled_address on sites (crawled_address) where crawled_address is not null;
