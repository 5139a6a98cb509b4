-- Sites, with their addresses and positions.

create type position_source as enum (
    'list', -- a submitted list of sites
    'geoip' -- the GeoIP file, in which the site's address was looked up
);

-- Sites. A site has only one row, even if several batches contain it.
create table sites (
    -- The site's identifier.
    id bigint primary key generated always as identity,
    -- The submitted name in its canonical spelling: only a host, or scheme://host:port. Names are
    -- sorted by their bytes, so that an index finds all names with a given prefix.
    name text collate "C" not null constraint sites_name_unique unique,
    -- The site's origin, scheme://host:port; null until a measurement or a crawl has found it.
    origin text,
    -- For an alias, the site that represents the origin of both names; null if this site is not an
    -- alias.
    alias_of bigint references sites (id),
    -- The site's address; null until an agent reported it. A later report changes the address only
    -- in two cases: the report also contains the site's origin, which was unknown, or two agents
    -- have reported the same address.
    address inet,
    -- The IPv4 address, or the IPv6 /64 network, to which the site's last crawl sent requests; null
    -- before the first crawl. The number of concurrent crawls at each such address or network is
    -- limited.
    crawled_address inet,
    -- The site's latitude in degrees; null if unknown.
    latitude double precision,
    longitude double precision, -- longitude in degrees; null if unknown
    -- The source of the position. A position from a list takes precedence.
    position_source position_source,
    -- Number of consecutive crawls whose round trip contradicted the previously known round trip.
    contradictions integer not null default 0,
    -- Measurements from before this time do not count, because crawls contradicted them. Null if
    -- the site's measurements were never marked as doubtful.
    doubted_at timestamptz,
    constraint sites_position_whole check (
        (latitude is null) = (position_source is null) and (longitude is null) = (position_source is null)
    )
);
create unique index sites_one_per_origin on sites (origin) where alias_of is null;
create index sites_aliases on sites (alias_of, id) where alias_of is not null;
create index sites_by_crawled_address on sites (crawled_address) where crawled_address is not null;
