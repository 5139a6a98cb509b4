-- Sites that were broken off: requests to them failed without end, and nobody crawls them until a person reopens them.

alter table outcomes
    -- robots | guard | breaker, when blocked; null from agents that do not say.
    add column blocked_by text
        constraint outcomes_blocked_by_known check (blocked_by in ('robots', 'guard', 'breaker'));
-- Few, however many outcomes there are.
create index outcomes_broken_off on outcomes (accepted_at) where blocked_by = 'breaker';

-- Older outcomes of the breaker count no more; null when it was never reopened.
alter table sites add column reopened_at timestamptz;

-- breaker: its site was broken off.
alter table parkings drop constraint parkings_cause_known;
alter table parkings add constraint parkings_cause_known check (cause in ('address', 'pause', 'breaker'));
alter table parkings drop constraint parkings_wait_for_something;
alter table parkings add constraint parkings_wait_for_something check (
    (cause = 'address' and address is not null) or (cause = 'pause' and until is not null) or cause = 'breaker'
);
create index parkings_broken_off on parkings (task_id) where cause = 'breaker';

-- Sites that are broken off, and since when.
create view broken_off as
select t.site_id, max(o.accepted_at) as since
from outcomes o join tasks t on t.id = o.task_id join sites s on s.id = t.site_id
where o.blocked_by = 'breaker' and o.accepted_at > coalesce(s.reopened_at, '-infinity')
group by t.site_id;
