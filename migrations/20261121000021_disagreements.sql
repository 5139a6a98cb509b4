-- Who found that the sites at an address differ: one agent's word holds for itself, two agents' for everyone.

-- The newest time an agent measured a site although it could have shared, and saw something else.
create table address_disagreements (
    address inet not null,
    prober_id bigint not null references agents (id),
    seen_at timestamptz not null default now(),
    primary key (address, prober_id)
);
create index address_disagreements_seen on address_disagreements (seen_at);

-- It did not say whose word it was. Nothing that used it was released.
drop table unshared_addresses;
