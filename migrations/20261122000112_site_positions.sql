-- Where sites are, as far as somebody says so.
alter table sites
    add column latitude double precision,
    add column longitude double precision,
    -- list: a submitted list says so, and that counts more; geoip: a file does, of an address that a prober saw.
    add column position_source text
        constraint sites_position_source_known check (position_source in ('list', 'geoip')),
    add constraint sites_position_whole check (
        (latitude is null) = (position_source is null) and (longitude is null) = (position_source is null)
    );
