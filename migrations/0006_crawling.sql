-- Crawling: batches of tasks, the agents chosen for them, leases, and outcomes.

-- How agents are chosen for the tasks of a batch: in two passes, which each look for their own.
create type choice_kind as enum (
    'alone',  -- for each task by itself
    'planned' -- for all of them together
);

-- Batches: lists of sites that are crawled by one policy and one strategy.
create table batches (
    -- Its number.
    id bigint primary key generated always as identity,
    -- Its name, sorted as the names of agents.
    name text collate "C" not null constraint batches_name_unique unique,
    -- How agents are chosen.
    strategy text not null constraint batches_strategy_known check (strategy in (
        'random', 'hash', 'kademlia', 'domain', 'geographic', 'prefix', 'gnp-balanced', 'gnp-confirmed', 'earliest-finish'
    ) or strategy ~ '^gnp-top[1-9][0-9]?$'),
    -- Which of the two ways that is.
    choice choice_kind not null
        generated always as (case when strategy = 'earliest-finish' then 'planned'::choice_kind else 'alone'::choice_kind end) stored,
    -- How far each site is crawled, and how: a `model::CrawlPolicy`; by default that of a scheduler
    -- without a configuration.
    policy jsonb not null default
        '{"max_pages": 200, "max_bytes": 67108864, "max_depth": 8, "max_hosts": 50, "max_duration_ms": 900000,
          "request_interval_ms": 1000, "shortest_interval_ms": 1000, "sitemaps": true, "store": true, "include": [],
          "exclude": [], "contact_url": null, "user_agent": null, "recrawl_interval_ms": null}',
    -- Of the policy, what queries compute with: budgets of one crawl,
    max_pages integer not null generated always as ((policy->>'max_pages')::integer) stored,
    max_bytes bigint not null generated always as ((policy->>'max_bytes')::bigint) stored, -- a budget, too
    max_duration_ms bigint not null generated always as ((policy->>'max_duration_ms')::bigint) stored, -- a budget, too
    -- the number of discovered hosts that are stored of a site,
    max_hosts integer not null generated always as ((policy->>'max_hosts')::integer) stored,
    -- the least time between two requests to a small site,
    request_interval_ms bigint not null generated always as ((policy->>'request_interval_ms')::bigint) stored,
    -- and from the end of a site's crawl to its next round; null: there is none.
    recrawl_interval_ms bigint generated always as ((policy->>'recrawl_interval_ms')::bigint) stored,
    -- When it was made.
    created_at timestamptz not null default now(),
    -- Since when it is being removed, in steps: nothing is added to it. Null: it is not.
    removing_since timestamptz
);

create type unmet_cause as enum (
    'excluded',    -- no agent meets the constraints
    'take-no-work' -- the agents that meet them take no work
);

-- Which agents may crawl a batch. A batch without a row may be crawled by every agent.
create table batch_constraints (
    -- The batch.
    batch_id bigint primary key references batches (id),
    -- The constraints, and what happens to a task that no enrolled agent may crawl: a
    -- `constraints::Constraints`.
    constraints jsonb not null,
    -- Why such tasks wait; null before one did.
    unmet_cause unmet_cause,
    -- How many agents each constraint excluded then: a `constraints::ExcludedAgents`.
    unmet_detail jsonb,
    constraint batch_constraints_detailed check ((unmet_cause is null) = (unmet_detail is null))
);

-- What agents fetched for batches that have a quota, by the hour.
create table quota_spending (
    -- The batch, the agent, and when the hour began.
    batch_id bigint not null references batches (id) on delete cascade,
    agent_id bigint not null references agents (id), -- the agent
    hour timestamptz not null, -- the hour
    -- Bytes of the outcomes that were accepted in it.
    bytes bigint not null,
    -- Crawls among them that fetched any.
    crawls bigint not null,
    primary key (batch_id, agent_id, hour)
);
create index quota_spending_by_hour on quota_spending (hour);

-- Answers to submissions: a repeated submission gets the first answer.
create table submissions (
    -- The key that the submitter drew.
    idempotency_key text primary key,
    -- The batch it was for.
    batch_id bigint not null references batches (id),
    -- Sites it added to the batch.
    added bigint not null,
    -- Sites that were in the batch before.
    already_present bigint not null,
    -- Names that it held more than once.
    duplicates bigint not null,
    -- Sites in the batch after it.
    batch_total bigint not null,
    -- When it was answered.
    created_at timestamptz not null default now()
);
create index submissions_by_time on submissions (created_at);
create index submissions_of_batch on submissions (batch_id);

create type task_state as enum (
    'submitted', -- known, nothing done
    'measuring', -- landmarks measure its site
    'located',   -- distances known, or unavailable for the cause in `reason`
    'assigned',  -- an agent is chosen
    'leased',    -- that agent's session may crawl it
    'done',      -- an outcome of kind complete or truncated was accepted
    'failed',    -- an outcome of another kind was accepted, or it was given up
    'cancelled'  -- not to be crawled
);

-- Why a task failed or was cancelled, for counts and filters.
create type reason_kind as enum (
    'guard',              -- the agent's guard refused its address
    'robots',             -- robots.txt forbids it
    'breaker',            -- its requests failed without end
    'blocked',            -- the crawl was blocked for another reason
    'name-not-found',     -- the name did not resolve
    'connection-refused', -- the connection was refused
    'no-connection',      -- no connection for another reason
    'timed-out',          -- no answer in time
    'tls',                -- no TLS session
    'redirect',           -- redirects led nowhere
    'status-4xx',         -- the start page is refused or missing
    'status-5xx',         -- the server fails
    'broken-answer',      -- the answer is no HTTP
    'unreachable',        -- not reached for another reason
    'poison',             -- its crawls ended with their agents
    'no-agent',           -- no enrolled agent may crawl it
    'cancelled',          -- an operator cancelled it
    'same-site'           -- its site is that of another task of the batch
);

create type unmeasured_cause as enum (
    'failed', -- every prober tried
    'silent'  -- no prober reported anything
);

-- Tasks: one round of one site of one batch.
create table tasks (
    -- Its number.
    id bigint primary key generated always as identity,
    -- The batch, the site, and the round from 1 on.
    batch_id bigint not null references batches (id),
    site_id bigint not null references sites (id), -- the site
    round integer not null default 1, -- the round
    -- What was done about it.
    state task_state not null default 'submitted',
    -- When it entered its state.
    state_since timestamptz not null default now(),
    -- Why it failed or was cancelled, for people; null otherwise. Nothing compares it.
    reason text,
    -- Why it failed or was cancelled; null otherwise.
    reason_kind reason_kind,
    -- Why its site has no distance; null where it has, or was not measured yet.
    unmeasured unmeasured_cause,
    -- The prober's message about that: shown, never compared.
    unmeasured_detail text,
    -- How its agent is chosen: its batch's, repeated for the indexes.
    choice choice_kind not null default 'alone',
    -- Whether it has a hold in `task_holds` that is not admitted: no agent is chosen for it.
    held boolean not null default false,
    -- The newest assignment; null before the first.
    assignment_id bigint,
    -- The agent of that assignment while the task is assigned or leased, else null; kept by the
    -- trigger below. What waits for an agent is looked up every second for every agent.
    agent_id bigint constraint tasks_agent_exists references agents (id),
    -- The token of the newest grant; 0 before the first.
    token bigint not null default 0,
    -- Crawls of this round that crashed: the lease was lost with its agent, or the agent says that
    -- the crawl panicked. After a few the task is given up, so that it does not take the fleet down
    -- agent by agent.
    crashes integer not null default 0,
    -- When the next round of this task was made; null: this is its newest round.
    retried_at timestamptz,
    -- When the next round is due; null while this one has not ended, where there is no next, and
    -- once it was made.
    recrawl_at timestamptz,
    constraint tasks_unique unique (batch_id, site_id, round),
    constraint tasks_held_are_located check (not held or state = 'located')
);
create index tasks_open on tasks (state, id) where state in ('submitted', 'measuring', 'located', 'assigned', 'leased');
create index tasks_by_site on tasks (site_id);
-- Tasks that an agent can be chosen for. Those whose lease was lost come first (token > 0): an
-- operator has waited for them longest.
create index tasks_to_choose on tasks ((token = 0), id) where state = 'located' and not held and choice = 'alone';
-- The same batch by batch, as a plan may leave batches out.
create index tasks_to_plan on tasks (batch_id, (token = 0), id)
    where state = 'located' and not held and choice = 'planned';
-- Tasks of an agent in the order of grants, those whose lease was lost first; and how many it has.
create index tasks_in_turn on tasks (agent_id, state, (token = 0), id) where state in ('assigned', 'leased');
-- Finds assigned tasks of a batch whose agent the batch excludes now.
create index tasks_assigned_of_batch on tasks (batch_id, agent_id) where state = 'assigned';
-- Finds the active crawls of a batch: the long ones may be preempted once no task of it waits. There
-- are at most as many as the agents have slots.
create index tasks_leased_of_batch on tasks (batch_id) where state = 'leased';
-- Counts the failed tasks of a batch, or of a time, without reading the others.
create index tasks_failed on tasks (batch_id, state_since) where state = 'failed' and retried_at is null;
-- Finds tasks with a due next round without reading tasks whose round is not due yet.
create index tasks_to_recrawl on tasks (recrawl_at) where recrawl_at is not null;
-- Finds rounds to delete: those that a newer round followed.
create index tasks_followed on tasks (retried_at) where retried_at is not null;

-- A trigger, so that no statement can forget it. A grant and a release leave the agent alone, and
-- cost nothing here.
create function name_agent_of_task() returns trigger language plpgsql as $$
begin
    new.agent_id = case when new.state in ('assigned', 'leased') then
        (select agent_id from assignments where id = new.assignment_id)
    end;
    return new;
end $$;
create trigger tasks_agent_chosen before update of state, assignment_id on tasks for each row
when (
    new.assignment_id is distinct from old.assignment_id
    or (new.state in ('assigned', 'leased')) <> (new.agent_id is not null)
) execute function name_agent_of_task();

create type hold_cause as enum (
    'address',   -- its address has no free place
    'pause',     -- its site asked for a pause
    'breaker',   -- the circuit of its site is open
    'unmet',     -- no agent may crawl it: `batch_constraints` holds the cause
    'confirming' -- the agents that may be nearest measure its site
);

create type wait_stage as enum (
    'measuring', -- sites are measured
    'locating',  -- measured sites are placed on the map
    'choosing'   -- agents are chosen
);

create type wait_cause as enum (
    'no-agent',          -- no agent is connected
    'none-accepts-work', -- no connected agent takes work
    'no-landmarks',      -- none are chosen, and the fleet is too large to work without them
    'landmarks-away',    -- no chosen landmark is connected
    'all-quarantined',   -- every prober is quarantined
    'no-map'             -- the map is about to be fitted
);

-- Why no agent of the fleet can take a stage's work: one row per closed stage, so that no waiting
-- task is rewritten when this changes.
create table stage_causes (
    -- The stage.
    stage wait_stage primary key,
    -- Why it is closed.
    cause wait_cause not null,
    -- Since when.
    since timestamptz not null default now()
);

-- Located tasks that must not be assigned yet, with a cause; at most one hold per task. A hold is
-- deleted when its cause has gone or the task changes its state.
create table task_holds (
    -- The task.
    task_id bigint primary key references tasks (id) on delete cascade,
    -- Its batch and its site, repeated for the indexes.
    batch_id bigint not null references batches (id),
    site_id bigint not null references sites (id), -- the site
    -- What it waits for.
    cause hold_cause not null,
    -- The address, or network, where it waits for a place; null for other causes.
    address inet,
    -- When the hold ends by itself; null where it does not.
    until timestamptz,
    -- Since when it waits.
    since timestamptz not null default now(),
    -- It is admitted to the address: an agent is chosen for it, and it keeps a place at the
    -- address until its crawl begins there.
    admitted boolean not null default false,
    constraint task_holds_at_an_address check ((cause = 'address') = (address is not null)),
    constraint task_holds_pauses_end check (cause <> 'pause' or until is not null),
    constraint task_holds_admitted_to_an_address check (not admitted or cause = 'address')
);
create index task_holds_at_address on task_holds (address, admitted, since, task_id) where cause = 'address';
create index task_holds_until on task_holds (until) where until is not null;
create index task_holds_unmet on task_holds (batch_id, since, task_id) where cause = 'unmet';
create index task_holds_of_site on task_holds (site_id, cause) where cause in ('breaker', 'confirming');

-- Sites whose circuit is open: requests to them failed without end. Their tasks are held until an
-- operator reopens them.
create table open_circuits (
    -- The site.
    site_id bigint primary key references sites (id),
    -- Since when.
    since timestamptz not null default now(),
    -- The agent whose crawl opened it.
    agent_id bigint not null references agents (id),
    -- That agent's message, for people.
    message text not null
);

-- Agents that a batch's constraints excluded when agents were chosen. Most assignments of a batch
-- share one row.
create table exclusions (
    -- Its number.
    id bigint primary key generated always as identity,
    -- The batch.
    batch_id bigint not null references batches (id),
    -- The excluded agents.
    agents bigint[] not null,
    -- The constraint that excluded each, in the same order: country, carrier, tag:NAME or quota.
    causes text[] not null,
    -- When it was first used.
    created_at timestamptz not null default now(),
    constraint exclusions_parallel check (cardinality(agents) = cardinality(causes))
);
create index exclusions_newest on exclusions (batch_id, id);

create type assignment_cause as enum (
    'strategy',       -- the strategy chose
    'explores',       -- the agent may be nearer than the best known
    'spread',         -- the site is probably in several places: the freest near agent
    'next-candidate', -- the agent before is gone
    'rebalanced',     -- the task waited at another agent
    'taken-back'      -- the crawl was under way at another agent
);

create type fallback_cause as enum (
    'no-distance',       -- no agent's distance to the site is known
    'no-address',        -- the site's address is not known
    'nothing-shared',    -- no agent's address shares a bit with the site's
    'no-suffix',         -- the site's name is an address
    'no-position',       -- the site's position is not known
    'no-agent-position', -- no agent's position is known
    'no-map',            -- there is no map to pick the confirming agents from
    'nobody-measured',   -- no agent that measured the site is connected
    'unmeasured',        -- no prober could measure the site
    'untrusted-map'      -- there is an alarm
);

-- Choices of an agent for a task; a new choice is a new row. With the task in its key, a task's
-- newest choice is one of its own.
create table assignments (
    -- Its number.
    id bigint primary key generated always as identity,
    -- The task.
    task_id bigint not null references tasks (id),
    -- The agent that was chosen.
    agent_id bigint not null references agents (id),
    -- The strategy that chose; differs from the batch's where `fallback` is set.
    strategy text not null constraint assignments_strategy_known check (strategy in (
        'random', 'hash', 'kademlia', 'domain', 'geographic', 'prefix', 'gnp-balanced', 'gnp-confirmed', 'earliest-finish'
    ) or strategy ~ '^gnp-top[1-9][0-9]?$'),
    -- The seed of the draw.
    seed bigint not null,
    -- The candidates, best first.
    candidates bigint[] not null,
    -- Their round trips to the site, predicted and measured; null where unknown.
    predicted_us bigint[] not null,
    measured_us bigint[] not null, -- measured
    -- Their load levels; null for one that was away.
    levels bigint[],
    -- Agents that took work and were not excluded, candidates or not.
    available integer,
    -- The agents that were excluded; null where none were.
    exclusions_id bigint constraint assignments_exclusions_exist references exclusions (id),
    -- How long the crawl was predicted to take; null where the strategy does not predict it.
    crawl_ms bigint constraint assignments_crawl_not_negative check (crawl_ms >= 0),
    -- Why this agent was chosen.
    cause assignment_cause not null default 'strategy',
    -- Why the batch's own strategy could not be followed; null where it was.
    fallback fallback_cause,
    -- The details of the cause and of the fallback: `model::ChoiceReasons`; null where the strategy was followed.
    detail jsonb,
    -- When it was chosen.
    created_at timestamptz not null default now(),
    constraint assignments_of_task unique (task_id, id),
    constraint assignments_candidates_parallel check (
        cardinality(candidates) = cardinality(predicted_us) and cardinality(candidates) = cardinality(measured_us)
    ),
    constraint assignments_levels_parallel check (cardinality(candidates) = cardinality(levels)),
    constraint assignments_detail_agrees check (
        coalesce(detail ->> 'cause', 'strategy') = cause::text
        and detail #>> '{fallback,cause}' is not distinct from fallback::text
    )
);
create index assignments_by_exclusions on assignments (exclusions_id) where exclusions_id is not null;
alter table tasks add constraint tasks_assignment_exists
    foreign key (id, assignment_id) references assignments (task_id, id);

-- The progress of deleting former choices; exactly one row.
create table retention_progress (
    -- Always true: the key of the only row.
    singleton boolean primary key default true constraint retention_progress_one_row check (singleton),
    -- The newest assignment whose predecessors were deleted.
    assignment_id bigint not null default 0
);
insert into retention_progress default values;

create type lease_state as enum (
    'active',    -- the session may crawl
    'completed', -- its outcome was accepted
    'released',  -- handed back
    'expired',   -- its session was lost
    'revoked'    -- its task was cancelled
);

-- Leases: an agent session's right to crawl a task's site.
create table leases (
    -- The task.
    task_id bigint not null references tasks (id),
    -- The fence: rises by one per grant of the task.
    token bigint not null,
    -- The task's site, repeated for `leases_one_per_site`.
    site_id bigint not null references sites (id),
    -- The agent.
    agent_id bigint not null references agents (id),
    -- Its session; another one when its agent reconnects and goes on. No foreign key: a session that
    -- ended is deleted before its leases.
    session_id bigint not null,
    -- Whether it may crawl, or how it ended.
    state lease_state not null default 'active',
    -- The address, or the network of one, that the crawl sends requests to; null until its agent
    -- has a permit for it.
    address inet,
    -- When it was granted.
    granted_at timestamptz not null default now(),
    -- When it ended; null while it is active.
    ended_at timestamptz,
    -- When the revocation was sent to its agent; null until then, and for leases not revoked.
    revocation_sent_at timestamptz,
    -- The message of the crash, from the agent; null if the crawl did not crash.
    crash text,
    primary key (task_id, token)
);
-- At most one task of a site is leased at a time, across batches.
create unique index leases_one_per_site on leases (site_id) where state = 'active';
create index leases_active_by_agent on leases (agent_id) where state = 'active';
create index leases_active_by_session on leases (session_id) where state = 'active';
create index leases_at_address on leases (address) where state = 'active' and address is not null;
-- A session looks up every second what it has not sent to its agent yet.
create index leases_revocations on leases (session_id) where state = 'revoked' and revocation_sent_at is null;

-- The progress of active crawls, so that another agent can resume one instead of beginning again.
create table checkpoints (
    -- The task.
    task_id bigint primary key references tasks (id) on delete cascade,
    -- The token of the lease whose agent sent it.
    token bigint not null,
    -- Pages fetched so far, by all agents that had the task.
    pages integer not null,
    -- The state of the crawl, deflated; only agents read it.
    state bytea not null constraint checkpoints_at_most_a_megabyte check (octet_length(state) <= 1048576),
    -- When it was stored.
    saved_at timestamptz not null default now(),
    -- The least time between two requests at the moment; null from agents that do not say.
    interval_ms bigint,
    -- Until when no request is sent to the site; null without a pause.
    paused_until timestamptz,
    -- Number of refused requests (429, 503) since the rate was last raised.
    turned_away integer not null default 0,
    -- Number of requests that failed in a row; at a limit the breaker opens and the crawl ends.
    failed_in_a_row integer not null default 0,
    -- Requests of the last minute.
    recent_requests integer not null default 0,
    -- Number of these that failed.
    recent_errors integer not null default 0,
    -- The newest error, a sentence; empty when there was none.
    last_error text not null default ''
);
-- It is deflated already.
alter table checkpoints alter column state set storage external;

-- How a crawl ended.
create type outcome_kind as enum (
    'complete',   -- everything within the budgets was fetched
    'truncated',  -- a budget cut it
    'blocked',    -- robots.txt, the guard or the breaker ended it
    'unreachable' -- its start page was not reached
);

-- The budget that cut a crawl.
create type crawl_budget as enum ('pages', 'bytes', 'duration', 'depth');

-- What a finished crawl reported; at most one per task.
create table outcomes (
    -- The task.
    task_id bigint primary key references tasks (id),
    -- The token of the lease it ended.
    token bigint not null,
    -- The agent that crawled.
    agent_id bigint not null references agents (id),
    -- How the crawl ended.
    kind outcome_kind not null,
    -- The budget that cut it; null unless it is truncated.
    budget crawl_budget,
    -- Pages and bytes that were fetched, and requests that failed.
    pages integer not null,
    bytes bigint not null, -- the bytes
    errors integer not null, -- the failed requests
    -- Pages fetched once more, because the agent that had fetched them could not hand over all its
    -- state.
    refetched integer not null default 0,
    -- Links left out because they lead into traps.
    trapped integer not null default 0,
    -- When the crawl began, by the agent's clock.
    started_at timestamptz not null,
    -- How long it took, by the agent's clock.
    duration_ms bigint not null,
    -- Median time to first byte on warm connections; null when none was seen.
    rtt_us bigint,
    -- The agent's message, for people; empty when there is none.
    message text not null default '',
    -- When it was accepted.
    accepted_at timestamptz not null default now(),
    constraint outcomes_of_a_lease foreign key (task_id, token) references leases (task_id, token)
);
-- The lengths of an agent's newest crawls predict how soon its slots are free.
create index outcomes_newest_by_agent on outcomes (agent_id, accepted_at);

-- The other sites to which pages of a batch's sites link, by each site's newest crawl that found
-- anything; at most the policy's `max_hosts` of a site.
create table discovered_hosts (
    -- The batch.
    batch_id bigint not null references batches (id),
    -- The other site's name, canonical as `sites.name`. It need not be a site here.
    host text collate "C" not null,
    -- The site whose pages link to it.
    site_id bigint not null references sites (id),
    -- When the first outcome that named it was accepted.
    found_at timestamptz not null default now(),
    -- The report reads a batch's hosts in order of name, and from this index alone.
    primary key (batch_id, host, site_id) include (found_at)
);
-- A site's later round replaces its hosts, and a batch is removed site by site.
create index discovered_hosts_by_site on discovered_hosts (site_id, batch_id);

-- The progress of batches, kept up to date by what changes, because a batch may have a million tasks.
-- Each statement that changes tasks adds a row of differences; a job adds these rows up. Readers use the
-- view `batch_progress`, which is exact at any time.

-- The sums that the job has made: for each batch, its newest rounds by state.
create table batch_totals (
    -- The batch.
    batch_id bigint primary key references batches (id) on delete cascade,
    -- Tasks in each state.
    submitted bigint not null,
    measuring bigint not null, -- tasks
    located bigint not null, -- tasks
    assigned bigint not null, -- tasks
    leased bigint not null, -- tasks
    done bigint not null, -- tasks
    failed bigint not null, -- tasks
    cancelled bigint not null, -- tasks
    -- Of the done tasks, those whose crawl was truncated.
    truncated bigint not null,
    -- Pages and bytes of their outcomes.
    pages bigint not null,
    bytes numeric not null -- of the outcomes, too; an agent may report any number
);

-- Differences that are not in the sums yet. It has no key and no foreign key: a statement that changes
-- tasks waits for nothing here.
create table batch_changes (
    -- The batch.
    batch_id bigint not null,
    -- When the change was made.
    at timestamptz not null default now(),
    -- What is added to each sum.
    submitted bigint not null default 0,
    measuring bigint not null default 0, -- as in batch_totals
    located bigint not null default 0, -- as in batch_totals
    assigned bigint not null default 0, -- as in batch_totals
    leased bigint not null default 0, -- as in batch_totals
    done bigint not null default 0, -- as in batch_totals
    failed bigint not null default 0, -- as in batch_totals
    cancelled bigint not null default 0, -- as in batch_totals
    truncated bigint not null default 0, -- as in batch_totals
    pages bigint not null default 0, -- as in batch_totals
    bytes numeric not null default 0, -- as in batch_totals
    -- Crawls that ended: 0 if the row only moves tasks.
    crawls bigint not null default 0
);

-- What the crawls that ended in a minute fetched, for rates and for throughput over time. A round that is
-- crawled again stays counted.
create table batch_minutes (
    -- The batch, and when the minute began.
    batch_id bigint not null references batches (id) on delete cascade,
    minute timestamptz not null, -- the minute
    -- Crawls that ended in it.
    crawls bigint not null,
    -- Pages and bytes of these crawls.
    pages bigint not null,
    bytes numeric not null, -- of these crawls, too
    primary key (batch_id, minute)
);
-- Minutes are deleted some time later, and status reads the last few.
create index batch_minutes_by_time on batch_minutes (minute);

-- Each batch's newest rounds by state.
create view batch_progress as
select b.id as batch_id,
       (coalesce(t.submitted, 0) + coalesce(c.submitted, 0))::bigint as submitted,
       (coalesce(t.measuring, 0) + coalesce(c.measuring, 0))::bigint as measuring,
       (coalesce(t.located, 0) + coalesce(c.located, 0))::bigint as located,
       (coalesce(t.assigned, 0) + coalesce(c.assigned, 0))::bigint as assigned,
       (coalesce(t.leased, 0) + coalesce(c.leased, 0))::bigint as leased,
       (coalesce(t.done, 0) + coalesce(c.done, 0))::bigint as done,
       (coalesce(t.failed, 0) + coalesce(c.failed, 0))::bigint as failed,
       (coalesce(t.cancelled, 0) + coalesce(c.cancelled, 0))::bigint as cancelled,
       (coalesce(t.truncated, 0) + coalesce(c.truncated, 0))::bigint as truncated,
       (coalesce(t.pages, 0) + coalesce(c.pages, 0))::bigint as pages,
       least(coalesce(t.bytes, 0) + coalesce(c.bytes, 0), 9223372036854775807)::bigint as bytes
from batches b
left join batch_totals t on t.batch_id = b.id
left join (
    select batch_id, sum(submitted) as submitted, sum(measuring) as measuring, sum(located) as located,
           sum(assigned) as assigned, sum(leased) as leased, sum(done) as done, sum(failed) as failed,
           sum(cancelled) as cancelled, sum(truncated) as truncated, sum(pages) as pages, sum(bytes) as bytes
    from batch_changes
    group by batch_id
) c on c.batch_id = b.id;

-- Tasks that were made count as added to their state, tasks that were removed as taken from it.
create function count_tasks() returns trigger language plpgsql as $$
declare
    n bigint = case tg_op when 'INSERT' then 1 else -1 end;
begin
    insert into batch_changes (batch_id, submitted, measuring, located, assigned, leased, done, failed, cancelled)
    select batch_id, n * count(*) filter (where state = 'submitted'), n * count(*) filter (where state = 'measuring'),
           n * count(*) filter (where state = 'located'), n * count(*) filter (where state = 'assigned'),
           n * count(*) filter (where state = 'leased'), n * count(*) filter (where state = 'done'),
           n * count(*) filter (where state = 'failed'), n * count(*) filter (where state = 'cancelled')
    from changed
    where retried_at is null
    group by batch_id;
    return null;
end $$;
create trigger tasks_counted_made after insert on tasks
referencing new table as changed for each statement execute function count_tasks();
create trigger tasks_counted_removed after delete on tasks
referencing old table as changed for each statement execute function count_tasks();

create function count_tasks_moved() returns trigger language plpgsql
set enable_nestloop = off set enable_seqscan = off as $$
begin
    insert into batch_changes (batch_id, submitted, measuring, located, assigned, leased, done, failed, cancelled)
    select *
    from (
        select batch_id, coalesce(sum(n) filter (where state = 'submitted'), 0) as submitted,
               coalesce(sum(n) filter (where state = 'measuring'), 0) as measuring,
               coalesce(sum(n) filter (where state = 'located'), 0) as located,
               coalesce(sum(n) filter (where state = 'assigned'), 0) as assigned,
               coalesce(sum(n) filter (where state = 'leased'), 0) as leased,
               coalesce(sum(n) filter (where state = 'done'), 0) as done,
               coalesce(sum(n) filter (where state = 'failed'), 0) as failed,
               coalesce(sum(n) filter (where state = 'cancelled'), 0) as cancelled
        from (
            select batch_id, state, 1 as n from after where retried_at is null
            union all
            select batch_id, state, -1 from before where retried_at is null
        ) moved
        group by batch_id
    ) difference
    where (submitted, measuring, located, assigned, leased, done, failed, cancelled) <> (0, 0, 0, 0, 0, 0, 0, 0);
    -- A round that is followed by another one takes its outcome with it.
    if exists (select from after where retried_at is not null) then
        insert into batch_changes (batch_id, truncated, pages, bytes)
        select after.batch_id, -count(*) filter (where o.kind = 'truncated'), -sum(o.pages), -sum(o.bytes)
        from after
        join before on before.id = after.id and before.retried_at is null
        join outcomes o on o.task_id = after.id
        where after.retried_at is not null
        group by after.batch_id;
    end if;
    return null;
end $$;
create trigger tasks_counted_moved after update on tasks
referencing old table as before new table as after for each statement execute function count_tasks_moved();

create function count_outcomes() returns trigger language plpgsql
set enable_seqscan = off as $$
begin
    insert into batch_changes (batch_id, truncated, crawls, pages, bytes)
    select t.batch_id, count(*) filter (where made.kind = 'truncated'), count(*), sum(made.pages), sum(made.bytes)
    from made join tasks t on t.id = made.task_id
    group by t.batch_id;
    return null;
end $$;
create trigger outcomes_counted after insert on outcomes
referencing new table as made for each statement execute function count_outcomes();

-- Active crawls whose lease was preempted, because another agent would end them sooner. A task is
-- preempted at most once, so that no crawl moves back and forth.
create table preemptions (
    -- The task.
    task_id bigint primary key references tasks (id) on delete cascade,
    -- The token of the preempted lease.
    token bigint not null,
    -- The agent of that lease.
    agent_id bigint not null references agents (id),
    -- The agent that was predicted to end the crawl sooner. An agent is chosen anew once the
    -- lease is handed back.
    to_agent_id bigint not null references agents (id),
    -- The predicted remaining time at this agent, and at the other one with the handover.
    here_ms bigint not null,
    there_ms bigint not null, -- at the other agent
    -- When it was decided.
    asked_at timestamptz not null default now(),
    -- When it was sent to the agent, on the session that has the lease; null until then.
    sent_at timestamptz,
    constraint preemptions_of_a_lease foreign key (task_id, token) references leases (task_id, token) on delete cascade
);
-- A session looks up every second what it has not sent to its agent yet.
create index preemptions_unsent on preemptions (agent_id) where sent_at is null;
-- Finds slots reserved for crawls that were preempted lately.
create index preemptions_newest on preemptions (asked_at);

-- Confirmations: before an agent is chosen for a site, the agents that may be nearest measure it.
-- All tasks of a site share the newest one; tasks that wait for it are held.
create table confirmations (
    -- The site.
    site_id bigint primary key references sites (id),
    -- When it was requested.
    wanted_at timestamptz not null default now(),
    -- When it began; null until its agents are chosen.
    began_at timestamptz,
    -- When all agents had answered or their time was up; null while an answer is awaited.
    ended_at timestamptz
);
create index confirmations_wanted on confirmations (wanted_at, site_id) where began_at is null and ended_at is null;
create index confirmations_open on confirmations (began_at) where began_at is not null and ended_at is null;

-- The agents that a confirmation asks, one after another; none when no agent can be nearer than
-- those that have measured.
create table confirmers (
    -- The site.
    site_id bigint not null references confirmations (site_id) on delete cascade,
    -- The agent.
    agent_id bigint not null references agents (id),
    -- When it was ordered to measure, the last time; null before.
    asked_at timestamptz,
    -- When its measurement or its failure was seen; null until then.
    answered_at timestamptz,
    primary key (site_id, agent_id)
);
