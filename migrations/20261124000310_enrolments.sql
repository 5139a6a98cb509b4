-- Enrolments as a life: tokens are listed, revoked and forgotten, and one may take the place of an agent that is in use.

alter table enrolments
    -- Whether it may be used although an agent of this name is in use: that agent is then another machine's.
    add column replaces boolean not null default false,
    -- When the operator revoked it; null where they have not.
    add column revoked_at timestamptz;
-- What has ended is forgotten some time after this.
create index enrolments_by_end on enrolments (expires_at);
create index enrolments_by_name on enrolments (agent_name);

alter table agents
    -- SHA-256 of the credential it had before this one: who presents it is told that another machine was enrolled in its place.
    add column former_credential_hash bytea,
    -- When that was.
    add column replaced_at timestamptz;
create index agents_by_former_credential on agents (former_credential_hash) where former_credential_hash is not null;
