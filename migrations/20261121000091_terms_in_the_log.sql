-- Who reaped, fitted and planned, in the log: a term that is taken is an event, and whatever is written under a term names it.
-- An event of an older term after a newer one was taken is what terms are there to prevent.

alter table events drop constraint events_noun_known;
alter table events add constraint events_noun_known check (noun in ('task', 'lease', 'session', 'agent', 'term'));
-- The duty and the number of the term under which it was written, as 'reap 3'; null where none is needed.
alter table events add column term text;
alter table events alter column term set default nullif(current_setting('landfall.term', true), '');

create function log_term() returns trigger language plpgsql as $$
begin
    insert into events (noun, what, term, cause)
    select 'term', 'taken', term, term || coalesce(' by ' || (select url from schedulers where id = new.holder), '')
    from (select new.duty || ' ' || new.number as term) as taken;
    return null;
end $$;
create trigger terms_taken after update of number on terms for each row
when (new.number <> old.number) execute function log_term();
