-- What a session has yet to be told is looked for every second.
create index leases_revocations on leases (session_id) where state = 'revoked' and revocation_sent_at is null;
