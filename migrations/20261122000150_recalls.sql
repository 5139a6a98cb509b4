-- Crawls under way whose lease was asked for, because another agent would end them sooner.

create table recalls (
    -- Once in a round of a site, at most: a crawl does not go to and fro.
    task_id bigint primary key references tasks (id) on delete cascade,
    -- The token of the lease that was asked for.
    token bigint not null,
    -- Whose it was.
    agent_id bigint not null references agents (id),
    -- Who would end it sooner, as it looked then: what is handed back is chosen for anew.
    to_agent_id bigint not null references agents (id),
    -- How long it would have gone on, and how long the other would take, handing over included.
    here_ms bigint not null,
    there_ms bigint not null,
    asked_at timestamptz not null default now(),
    -- When the agent was told, on the session that has the lease; null until then.
    sent_at timestamptz,
    constraint recalls_of_a_lease foreign key (task_id, token) references leases (task_id, token) on delete cascade
);
-- What a session has yet to be told is looked for every second.
create index recalls_untold on recalls (agent_id) where sent_at is null;
-- Slots that newly recalled crawls are to have.
create index recalls_newest on recalls (asked_at);
