-- The authority that the agents of this database trust: several schedulers must show the same one.
alter table settings add column ca_fingerprint text;
comment on column settings.ca_fingerprint is 'SHA-256 of the authority''s certificate, hexadecimal; null until a scheduler listened off loopback';
