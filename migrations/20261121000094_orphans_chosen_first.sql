-- Of the tasks that need an agent those first whose lease was lost, as where leases are granted: somebody has waited for them already.
-- Thousands that never had one may have been withdrawn in the same moment.
create index tasks_to_choose on tasks ((token = 0), id) where state = 'located';
