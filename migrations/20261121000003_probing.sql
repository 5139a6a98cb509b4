-- Spending few probes: sites at one address share measurements and wait for one another; measurements that crawls
-- contradict are taken again.

alter table sites
    -- The address at which a prober saw it last; null until one has.
    add column address inet,
    -- Crawls in a row whose round trip contradicted what was known.
    add column contradictions integer not null default 0,
    -- Measurements taken before this no longer count; null when none was doubted.
    add column doubted_at timestamptz;

alter table measurement_orders
    -- The site's address when it was ordered; null while it was not known.
    add column address inet;
-- One order at a time to an address, whichever prober and whichever site.
create unique index measurement_orders_one_per_address on measurement_orders (address) where address is not null;

alter table site_measurements
    -- The origin of the site whose measurement by the same prober this is; null when this site was measured.
    add column shared_from text,
    -- Requests this prober has sent to the site and connections it has tried, over all its measurements.
    add column requests bigint not null default 0;

-- Addresses whose sites turned out to differ: they are measured one by one for a while.
create table unshared_addresses (
    address inet primary key,
    seen_at timestamptz not null default now()
);
