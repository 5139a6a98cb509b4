-- The agent a task is assigned or leased to, in the task itself: what waits for one agent is asked every second for every
-- agent, and through `assignments` that was to look at all that is assigned to anybody.

alter table tasks
    -- The agent of the newest assignment while the task is assigned or leased to it, else null.
    add column agent_id bigint,
    add constraint tasks_agent_exists foreign key (agent_id) references agents (id);

-- Kept by a trigger: no statement can forget it, and a scheduler of the release before, which has not heard of it, keeps it too.
create function name_agent_of_task() returns trigger language plpgsql as $$
begin
    new.agent_id = case when new.state in ('assigned', 'leased') then
        (select agent_id from assignments where id = new.assignment_id)
    end;
    return new;
end $$;
-- A grant and a release leave the agent alone, and cost nothing here.
create trigger tasks_agent_chosen before update of state, assignment_id on tasks for each row
when (
    new.assignment_id is distinct from old.assignment_id
    or (new.state in ('assigned', 'leased')) <> (new.agent_id is not null)
) execute function name_agent_of_task();

-- Only what is open: a batch that has ended costs nothing.
update tasks t set agent_id = a.agent_id
from assignments a where a.id = t.assignment_id and t.state in ('assigned', 'leased');

-- The log takes the agent from the task as well, in place of looking it up.
create or replace function log_task() returns trigger language plpgsql as $$
begin
    insert into events (noun, what, task_id, token, agent_id, cause)
    values ('task', new.state::text, new.id, nullif(new.token, 0),
            case when new.state = 'assigned' then new.agent_id end, new.reason);
    return null;
end $$;
