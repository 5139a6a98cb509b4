-- The log, and the views that reports read.

-- Every transition of tasks, leases, sessions, agents' service and terms; append-only. Triggers
-- write it in the transaction that makes the change: no statement can change a state without an
-- event, and what was rolled back has none.
create table events (
    -- The transaction that wrote it. Readers stop below the oldest transaction under way:
    -- everything below has been committed, so that a reader that continues from there misses
    -- nothing. An event's number alone does not show this.
    xact xid8 not null default pg_current_xact_id(),
    -- Of one task, lease or session a later transition has a higher number: its row is locked while
    -- the number is drawn.
    id bigint not null generated always as identity,
    -- When it was written.
    at timestamptz not null default clock_timestamp(),
    -- What changed.
    noun text not null
        constraint events_noun_known check (noun in ('task', 'lease', 'session', 'agent', 'term', 'database')),
    -- The state that was entered, or what happened otherwise: granted, rebound, opened, draining,
    -- resumed, removed.
    what text not null,
    -- The task that it is about; null where it is about none.
    task_id bigint,
    -- The token of the lease; null where it is about none.
    token bigint,
    -- The agent that it is about; of a task the one that was chosen, where it was assigned.
    agent_id bigint,
    -- The session that it is about; null where it is about none.
    session_id bigint,
    -- The number of that session among its agent's.
    incarnation bigint,
    -- Why, for people; null where the state alone explains the event.
    cause text,
    -- The role and the number of the term under which it was written, as 'reap 3'; null where none
    -- is needed. An event of an older term after a newer one was taken is what terms prevent.
    term text default nullif(current_setting('landfall.term', true), ''),
    constraint events_pkey primary key (xact, id)
);
create index events_by_task on events (task_id, id) where task_id is not null;
create index events_by_agent on events (agent_id, id) where agent_id is not null;
-- Reads events since a time without reading earlier ones.
create index events_by_time on events (at, id);

-- Tasks and leases move many at a time, so their events are written once a statement. A function's
-- plan is made once a connection and kept, perhaps for a single row or an empty table. Hence the
-- settings: other tables are looked up by key, and a statement that moves thousands does not
-- compare each with each.

create function log_tasks_made() returns trigger language plpgsql as $$
begin
    insert into events (noun, what, task_id)
    select 'task', made.state::text, made.id from made order by made.id;
    return null;
end $$;
create trigger tasks_made after insert on tasks
referencing new table as made for each statement execute function log_tasks_made();

-- A task that changed its state, or that was given to another agent.
create function log_tasks_moved() returns trigger language plpgsql
set enable_nestloop = off set enable_seqscan = off as $$
begin
    insert into events (noun, what, task_id, token, agent_id, cause)
    select 'task', after.state::text, after.id, nullif(after.token, 0),
           case when after.state = 'assigned' then after.agent_id end,
           case when after.state = 'assigned' and before.state <> 'leased' then (
               -- "next-candidate: a lost"; nothing where the strategy was followed as ever.
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

-- Measurements taken by confirmations.
create view confirming_measurements as
select m.site_id, m.prober_id, m.answered, m.lost
from site_measurements m
join confirmers c on c.site_id = m.site_id and c.agent_id = m.prober_id
where m.measured_at between c.asked_at and coalesce(c.answered_at, 'infinity');

-- Crawls that have ended, and when they were under way, for reports of throughput. A crawl lies
-- between the grant of its lease and the acceptance of its outcome, by this database's clock; the
-- agent's clock and the length it reports say where in between, as far as they fit. So a wrong
-- clock moves no crawl to where it cannot have been.
create view crawls as
select o.task_id, t.batch_id, t.round, t.retried_at is null as newest_round, t.assignment_id, o.agent_id, o.pages, o.bytes, o.rtt_us,
       begin.begun, finish.ended
from outcomes o
join tasks t on t.id = o.task_id
join leases l on l.task_id = o.task_id and l.token = o.token
-- No length is longer than a year here: an interval could not hold every number that an agent may
-- report.
cross join lateral (select least(o.duration_ms, 31536000000) * interval '1 ms' as length) reported
cross join lateral (select greatest(l.granted_at, least(o.started_at, o.accepted_at - reported.length)) as begun) begin
cross join lateral (select greatest(begin.begun, least(o.accepted_at, begin.begun + reported.length)) as ended) finish;
