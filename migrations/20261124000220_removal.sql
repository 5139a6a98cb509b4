-- Batches can be removed, in steps.

alter table batches
    -- Since when it is being removed: nothing is added to it any more.
    add column removing_since timestamptz;

-- A task's newest choice is one of its own. With the task in the key, whoever removes a choice finds its task by the primary key.
alter table assignments add constraint assignments_of_task unique (task_id, id);
drop index assignments_by_task;
alter table tasks drop constraint tasks_assignment_exists;
alter table tasks add constraint tasks_assignment_exists foreign key (id, assignment_id) references assignments (task_id, id);

-- For whoever removes exclusions.
create index assignments_by_exclusions on assignments (exclusions_id) where exclusions_id is not null;
