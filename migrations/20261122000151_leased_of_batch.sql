-- The crawls under way of a batch: which of them take long is looked at once nothing of it waits. Not built concurrently, as
-- `tasks_of_agents`; it holds no more rows than agents have slots.
create index tasks_leased_of_batch on tasks (batch_id) where state = 'leased';
