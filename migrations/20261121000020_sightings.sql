-- Whose turn it is at an address: where each prober sees a site, as far as that is not where the others see it.

-- The site's address (`sites.address`) is what a prober said first, or what two agree on; a prober without a row here is
-- taken to see the site there.
create table site_sightings (
    site_id bigint not null references sites (id),
    prober_id bigint not null references agents (id),
    -- The address that the site's name led the prober to, the last time.
    address inet not null,
    -- How often in a row it answered an order that held a turn with another address.
    postponed integer not null default 0,
    -- Requests it sent to the site that no measurement counts yet.
    requests bigint not null default 0,
    primary key (site_id, prober_id)
);
