-- What happened since a moment is read without what was before it.
create index events_by_time on events (at, id);
