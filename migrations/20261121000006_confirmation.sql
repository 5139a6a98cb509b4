-- Confirmation: before a site of a `gnp-confirmed` batch gets its agent, those that may be nearest measure it.

-- The newest confirmation of a site; every task of the site shares it.
create table confirmations (
    site_id bigint primary key references sites (id),
    began_at timestamptz not null default now(),
    -- When everybody asked had answered or was waited for no longer; null while somebody is waited for.
    ended_at timestamptz
);
create index confirmations_open on confirmations (began_at) where ended_at is null;

-- The agents that a confirmation asks, one after another; none when nobody could be nearer than who has measured.
create table confirmers (
    site_id bigint not null references confirmations (site_id),
    agent_id bigint not null references agents (id),
    -- When it was ordered to measure, the last time; null until its turn.
    asked_at timestamptz,
    -- When it was seen to have measured or failed; null until then.
    answered_at timestamptz,
    primary key (site_id, agent_id)
);

-- Whether the order is a confirmation's: that takes fewer samples.
alter table measurement_orders add column confirming boolean not null default false;

-- The measurements that were taken to confirm.
create view confirming_measurements as
select m.site_id, m.prober_id, m.answered, m.lost
from site_measurements m
join confirmers c on c.site_id = m.site_id and c.agent_id = m.prober_id
where m.measured_at between c.asked_at and coalesce(c.answered_at, 'infinity');
