-- Sites whose distances were too unsure to choose an agent by them: they wait for a confirmation, though their batches do not ask one for
-- every site. A row is gone when the confirmation begins.
create table wanted_confirmations (
    site_id bigint primary key references sites (id)
);
