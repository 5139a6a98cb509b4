-- Addresses whose sites share one budget of crawls, and tasks whose turn has not come.

-- The address, or the network of one, that a lease's crawl sends requests to; null until its agent has claimed it.
alter table leases add column address inet;
create index leases_at_address on leases (address) where state = 'active' and address is not null;

-- Where a crawl has found the site last, in the same form: how many sites an address has says how much it bears.
alter table sites add column crawled_at inet;
create index sites_crawled_at on sites (crawled_at) where crawled_at is not null;

-- Located, and not to be chosen an agent for yet: `parkings` says why.
alter table tasks add column parked boolean not null default false;

create table parkings (
    task_id bigint primary key references tasks (id) on delete cascade,
    -- address: its address bears no further crawl; pause: the site asked to be left alone.
    cause text not null constraint parkings_cause_known check (cause in ('address', 'pause')),
    address inet,
    until timestamptz,
    since timestamptz not null default now(),
    -- Its turn at the address has come, and its crawl has not begun there yet.
    called boolean not null default false,
    constraint parkings_wait_for_something check (
        (cause = 'address' and address is not null) or (cause = 'pause' and until is not null)
    )
);
create index parkings_at_address on parkings (address, called, since) where cause = 'address';
create index parkings_until on parkings (until) where cause = 'pause';

-- In its place: what is parked is not looked at when agents are chosen.
create index tasks_to_choose_now on tasks ((token = 0), id) where state = 'located' and not parked;
drop index tasks_to_choose;
