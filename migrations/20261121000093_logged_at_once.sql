-- Tasks and leases move many at a time, and logging each move by itself took most of the time that granting and completing took.
-- So the log is written once a statement. What a line says is unchanged.
--
-- The plan of a function is made once a connection and kept, perhaps for a single row, or a table that was empty then. Hence the
-- settings: what else a line needs is looked up by key, and a statement that moves thousands does not compare each with each.

create function log_tasks_moved() returns trigger language plpgsql
set enable_nestloop = off set enable_seqscan = off as $$
begin
    insert into events (noun, what, task_id, token, agent_id, cause)
    select 'task', after.state::text, after.id, nullif(after.token, 0),
           case when after.state = 'assigned' then after.agent_id end, after.reason
    from after join before on before.id = after.id
    where after.state <> before.state or after.assignment_id is distinct from before.assignment_id
    order by after.id;
    return null;
end $$;
drop trigger tasks_moved on tasks;
drop trigger tasks_passed_on on tasks;
create trigger tasks_moved after update on tasks
referencing old table as before new table as after for each statement execute function log_tasks_moved();
drop function log_task;

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
create function log_leases_moved() returns trigger language plpgsql
set enable_nestloop = off set enable_seqscan = off as $$
begin
    insert into events (noun, what, task_id, token, agent_id, session_id, incarnation, cause)
    select 'lease', case when after.state = before.state then 'rebound' else after.state::text end,
           after.task_id, after.token, after.agent_id, after.session_id,
           (select incarnation from sessions where id = after.session_id),
           case after.state
               when 'completed' then (select kind from outcomes where task_id = after.task_id)
               when 'released' then coalesce('crashed: ' || after.crash, 'handed back')
               when 'expired' then
                   'its session ended: ' || coalesce((select end_cause from sessions where id = after.session_id), 'unknown')
           end
    from after join before on before.task_id = after.task_id and before.token = after.token
    where after.state <> before.state or after.session_id <> before.session_id
    order by after.task_id;
    return null;
end $$;
drop trigger leases_granted on leases;
drop trigger leases_moved on leases;
create trigger leases_granted after insert on leases
referencing new table as made for each statement execute function log_leases_granted();
create trigger leases_moved after update on leases
referencing old table as before new table as after for each statement execute function log_leases_moved();
drop function log_lease;
