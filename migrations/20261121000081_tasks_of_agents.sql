-- What is assigned to an agent, in the order it is granted; and how much each agent has, without reading a task. Not built
-- concurrently: a second scheduler that starts waits for the migrations in a statement, and the build would wait for that one.
-- Of a million open tasks it takes about a second.
create index tasks_of_agents on tasks (agent_id, state, id) where state in ('assigned', 'leased');
-- It takes this one's place; without it a scheduler of the release before is slower, and right.
drop index tasks_assigned;
