-- What agents say of their load with every heartbeat, beside what is known of it here; and a line in the log when a task that
-- waits at one agent goes to another.

alter table sessions
    -- Slots in which a crawl could begin, when the agent said so last; null until it has, and from agents that never do.
    add column free_slots integer,
    -- Crawls under way then, those that were being stopped among them.
    add column crawls integer,
    -- Outcomes that waited to be acknowledged then.
    add column outcomes_waiting integer;

create trigger tasks_passed_on after update of assignment_id on tasks for each row
when (new.state = old.state and new.assignment_id is distinct from old.assignment_id)
execute function log_task();
