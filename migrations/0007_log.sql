-- The log of events, and the views that reports read.

-- Its last value is added to the server's transaction numbers in the column `events.xact`: the floor
-- of the newest history. A new server counts its transactions from 1, and a promoted server counts
-- lost transactions again, but its events must sort after the earlier events.
create sequence event_offset;

-- Events: every transition of tasks, leases, sessions, agents and terms. Rows are never updated.
-- Triggers insert an event in the transaction that makes the transition. So every committed
-- transition has an event, and a transition that is rolled back has none.
create table events (
    -- The number of the transaction that wrote the event. Readers read only events whose number is
    -- below that of the oldest open transaction. All transactions with lower numbers have ended, so
    -- a reader that later continues after the last event it read misses no event. A reader that
    -- continued by the column `id` could miss events, because transactions do not commit in the
    -- order in which they take identifiers.
    xact xid8 not null
        default (pg_current_xact_id()::text::bigint + coalesce(pg_sequence_last_value('event_offset'), 0))::text::xid8,
    -- The event's number. Later transitions of the same task, lease or session have higher numbers,
    -- because the row of the task, lease or session is locked while the number is taken.
    id bigint not null generated always as identity,
    -- When the event was written.
    at timestamptz not null default clock_timestamp(),
    -- The kind of thing that changed.
    noun text not null
        constraint events_noun_known check (noun in ('task', 'lease', 'session', 'agent', 'term', 'database')),
    -- The state that was entered, or another word for the transition: for example granted, rebound,
    -- opened, enrolled, draining, resumed, removed, taken, restored, promoted, copied.
    what text not null,
    -- The task of the event; null if the event concerns no task.
    task_id bigint,
    -- The token of the lease; null if the event concerns no lease.
    token bigint,
    -- The agent of the event; null if the event concerns no agent. If a task was assigned, this is
    -- the chosen agent.
    agent_id bigint,
    -- The session of the event; null if the event concerns no session.
    session_id bigint,
    -- The incarnation of the session.
    incarnation bigint,
    -- The cause of the event, for operators; null if the state alone explains the event.
    cause text,
    -- The role and the number of the term in which the event was written, for example 'reap 3';
    -- null if the transition needs no role. No event of a term is written after a newer term of the
    -- same role has begun.
    term text default nullif(current_setting('landfall.term', true), ''),
    constraint events_pkey primary key (xact, id)
);
create index events_by_task on events (task_id, id) where task_id is not null;
create index events_by_agent on events (agent_id, id) where agent_id is not null;
-- For reading the events since a given time without reading earlier events.
create index events_by_time on events (at, id);

-- One statement often changes many tasks or leases, so their triggers run once per statement, not
-- once per row. A connection keeps the plans of a trigger function. A plan that was made for few
-- rows would be slow for thousands of rows. So the settings of the functions below prevent nested
-- loops, which would compare each changed row with all changed rows, and sequential scans, which
-- would read whole tables.

create function log_tasks_made() returns trigger language plpgsql as $$
begin
    insert into events (noun, what, task_id)
    select 'task', made.state::text, made.id from made order by made.id;
    return null;
end $$;
create trigger tasks_made after insert on tasks
referencing new table as made for each statement execute function log_tasks_made();

-- Writes an event for each task that changed its state or got another assignment.
create function log_tasks_moved() returns trigger language plpgsql
set enable_nestloop = off set enable_seqscan = off as $$
begin
    insert into events (noun, what, task_id, token, agent_id, cause)
    select 'task', after.state::text, after.id, nullif(after.token, 0),
           case when after.state = 'assigned' then after.agent_id end,
           case when after.state = 'assigned' and before.state <> 'leased' then (
               -- For example "next-candidate: a lost"; null for an ordinary choice.
               select nullif(concat_ws(': ', c.cause, nullif(concat_ws(
                   ' ', c.detail #>> '{parted,agent}', c.detail #>> '{parted,how}'
               ), '')), 'strategy')
               from assignments c where c.id = after.assignment_id
           ) else after.reason end
    from after join before on before.id = after.id
    where after.state <> before.state or after.assignment_id is distinct from before.assignment_id
    order by after.id;
    return null;
end $$;
create trigger tasks_moved after update on tasks
referencing old table as before new table as after for each statement execute function log_tasks_moved();

create function log_leases_granted() returns trigger language plpgsql
set enable_seqscan = off as $$
begin
    insert into events (noun, what, task_id, token, agent_id, session_id, incarnation)
    select 'lease', 'granted', made.task_id, made.token, made.agent_id, made.session_id,
           (select incarnation from sessions where id = made.session_id)
    from made
    order by made.task_id;
    return null;
end $$;
create trigger leases_granted after insert on leases
referencing new table as made for each statement execute function log_leases_granted();

create function log_leases_moved() returns trigger language plpgsql
set enable_nestloop = off set enable_seqscan = off as $$
begin
    insert into events (noun, what, task_id, token, agent_id, session_id, incarnation, cause)
    select 'lease', case when after.state = before.state then 'rebound' else after.state::text end,
           after.task_id, after.token, after.agent_id, after.session_id,
           (select incarnation from sessions where id = after.session_id),
           case after.state
               when 'completed' then (select kind::text from outcomes where task_id = after.task_id)
               when 'released' then coalesce('crashed: ' || after.crash, 'handed back')
               when 'expired' then
                   'its session ended: ' || coalesce((select end_cause::text from sessions where id = after.session_id), 'unknown')
               when 'overdue' then 'its crawl did not end in time'
           end
    from after join before on before.task_id = after.task_id and before.token = after.token
    where after.state <> before.state or after.session_id <> before.session_id
    order by after.task_id;
    return null;
end $$;
create trigger leases_moved after update on leases
referencing old table as before new table as after for each statement execute function log_leases_moved();

create function log_session() returns trigger language plpgsql as $$
begin
    insert into events (noun, what, agent_id, session_id, incarnation, cause)
    values ('session', case when tg_op = 'INSERT' then 'opened' else new.state::text end,
            new.agent_id, new.id, new.incarnation, new.end_cause);
    return null;
end $$;
create trigger sessions_opened after insert on sessions for each row execute function log_session();
create trigger sessions_ended after update of state on sessions for each row
when (new.state <> old.state) execute function log_session();

create function log_agent() returns trigger language plpgsql as $$
begin
    insert into events (noun, what, agent_id)
    select 'agent', happened.what, new.id
    from (values
        ('removed', old.removed_at is null and new.removed_at is not null),
        ('enrolled', old.removed_at is not null and new.removed_at is null),
        ('draining', old.draining_since is null and new.draining_since is not null),
        ('resumed', old.draining_since is not null and new.draining_since is null and new.removed_at is null)
    ) as happened (what, so)
    where happened.so;
    return null;
end $$;
create trigger agents_changed after update of draining_since, removed_at on agents for each row
execute function log_agent();

create function log_term() returns trigger language plpgsql as $$
begin
    insert into events (noun, what, term, cause)
    select 'term', 'taken', term, term || coalesce(' by ' || (select url from schedulers where id = new.holder), '')
    from (select new.role || ' ' || new.number as term) as taken;
    return null;
end $$;
create trigger terms_taken after update of number on terms for each row
when (new.number <> old.number) execute function log_term();

-- The measurements that were taken for confirmations.
create view confirming_measurements as
select m.site_id, m.prober_id, m.answered, m.lost
from site_measurements m
join confirmers c on c.site_id = m.site_id and c.agent_id = m.prober_id
where m.measured_at between c.asked_at and coalesce(c.answered_at, 'infinity');

-- Ended crawls, with the times at which each crawl began and ended, for reports of throughput. The
-- agent reports these times by its own clock, which may be wrong. So the view limits them by the
-- database's clock: a crawl begins after the grant of its lease, and ends before its outcome is
-- accepted.
create view crawls as
select o.task_id, t.batch_id, t.round, t.retried_at is null as newest_round, t.assignment_id, o.agent_id, o.pages, o.bytes, o.rtt_us,
       begin.begun, finish.ended
from outcomes o
join tasks t on t.id = o.task_id
join leases l on l.task_id = o.task_id and l.token = o.token
-- Durations are limited to one year, because an agent may report a number that is too large for an
-- interval.
cross join lateral (select least(o.duration_ms, 31536000000) * interval '1 ms' as length) reported
cross join lateral (select greatest(l.granted_at, least(o.started_at, o.accepted_at - reported.length)) as begun) begin
cross join lateral (select greatest(begin.begun, least(o.accepted_at, begin.begun + reported.length)) as ended) finish;
