-- The log of every transition of a task, a lease, a session, and of an agent's service: append-only, written by triggers in
-- the transaction that makes the change, so that no statement can change anything without saying so, and nothing that was
-- rolled back is said.

create table events (
    -- The transaction that wrote it. Readers stop below the oldest transaction under way: whatever is below has been
    -- committed, so that nobody who continues from there misses anything. The number of an event alone does not say that.
    xact xid8 not null default pg_current_xact_id(),
    -- Of one task, lease or session a later transition has a higher number: its row is locked while it is drawn.
    id bigint not null generated always as identity,
    at timestamptz not null default clock_timestamp(),
    noun text not null constraint events_noun_known check (noun in ('task', 'lease', 'session', 'agent')),
    -- The state that was entered, or what happened otherwise: granted, rebound, opened, draining, resumed, removed.
    what text not null,
    task_id bigint,
    -- The lease's.
    token bigint,
    -- Of a task: the agent that was chosen, where it was assigned.
    agent_id bigint,
    session_id bigint,
    incarnation bigint,
    -- Why, for people; null where the state says all.
    cause text,
    constraint events_pkey primary key (xact, id)
);
create index events_by_task on events (task_id, id) where task_id is not null;
create index events_by_agent on events (agent_id, id) where agent_id is not null;

create function log_tasks_made() returns trigger language plpgsql as $$
begin
    insert into events (noun, what, task_id)
    select 'task', made.state::text, made.id from made order by made.id;
    return null;
end $$;
create trigger tasks_made after insert on tasks
referencing new table as made for each statement execute function log_tasks_made();

-- What changes is told row by row: each value is at hand or found by its key, whatever the planner thinks of the tables; and
-- a statement that leaves the state alone costs nothing.
create function log_task() returns trigger language plpgsql as $$
begin
    insert into events (noun, what, task_id, token, agent_id, cause)
    values ('task', new.state::text, new.id, nullif(new.token, 0),
            case when new.state = 'assigned' then (select agent_id from assignments where id = new.assignment_id) end,
            new.reason);
    return null;
end $$;
create trigger tasks_moved after update of state on tasks for each row
when (new.state <> old.state) execute function log_task();

create function log_lease() returns trigger language plpgsql as $$
begin
    insert into events (noun, what, task_id, token, agent_id, session_id, incarnation, cause)
    values ('lease',
            case when tg_op = 'INSERT' then 'granted' when new.state = old.state then 'rebound' else new.state::text end,
            new.task_id, new.token, new.agent_id, new.session_id,
            (select incarnation from sessions where id = new.session_id),
            case new.state
                when 'completed' then (select kind from outcomes where task_id = new.task_id)
                when 'released' then coalesce('crashed: ' || new.crash, 'handed back')
                when 'expired' then
                    'its session ended: ' || coalesce((select end_cause from sessions where id = new.session_id), 'unknown')
            end);
    return null;
end $$;
create trigger leases_granted after insert on leases for each row execute function log_lease();
create trigger leases_moved after update of state, session_id on leases for each row
when (new.state <> old.state or new.session_id <> old.session_id) execute function log_lease();

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
