-- A task whose lease was lost goes before those that never had one: somebody has waited for it already. The order of grants as
-- `tasks_of_agents` has it, but for that; of an agent's load it tells as much. Not built concurrently, as that one was not.
create index tasks_in_turn on tasks (agent_id, state, (token = 0), id) where state in ('assigned', 'leased');
-- It takes this one's place; without it a scheduler of the release before is slower, and right.
drop index tasks_of_agents;
