-- Crawling: batches of tasks, the agents chosen for them, leases, and outcomes.

-- How agents are chosen for the tasks of a batch. Each kind of choice has its own pass.
create type choice_kind as enum (
    'alone',  -- for each task separately
    'planned' -- for all tasks together
);

-- Batches: lists of sites that are crawled by one policy and one strategy.
create table batches (
    -- The batch's identifier.
    id bigint primary key generated always as identity,
    -- The batch's name. Names are sorted by their bytes, like the names of agents.
    name text collate "C" not null constraint batches_name_unique unique,
    -- The strategy by which agents are chosen for the batch's tasks.
    strategy text not null constraint batches_strategy_known check (strategy in (
        'random', 'hash', 'kademlia', 'domain', 'geographic', 'prefix', 'gnp-balanced', 'gnp-confirmed', 'earliest-finish'
    ) or strategy ~ '^gnp-top[1-9][0-9]?$'),
    -- Whether this strategy chooses agents for each task separately, or for all tasks together.
    choice choice_kind not null
        generated always as (case when strategy = 'earliest-finish' then 'planned'::choice_kind else 'alone'::choice_kind end) stored,
    -- The crawl policy, a `model::CrawlPolicy`. The default is the policy of a scheduler without a
    -- configuration.
    policy jsonb not null default
        '{"max_pages": 200, "max_bytes": 67108864, "max_depth": 8, "max_hosts": 50, "max_duration_ms": 900000,
          "request_interval_ms": 1000, "shortest_interval_ms": 1000, "sitemaps": true, "store": true, "include": [],
          "exclude": [], "contact_url": null, "user_agent": null, "recrawl_interval_ms": null}',
    -- This column and the next five repeat fields of the policy for queries. The first three of
    -- these columns are the budgets of one crawl.
    max_pages integer not null generated always as ((policy->>'max_pages')::integer) stored,
    max_bytes bigint not null generated always as ((policy->>'max_bytes')::bigint) stored, -- a budget of one crawl
    max_duration_ms bigint not null generated always as ((policy->>'max_duration_ms')::bigint) stored, -- a budget of one crawl
    -- Maximum number of discovered hosts that are stored for a site.
    max_hosts integer not null generated always as ((policy->>'max_hosts')::integer) stored,
    -- Minimum time between two requests to a small site.
    request_interval_ms bigint not null generated always as ((policy->>'request_interval_ms')::bigint) stored,
    -- Time from the end of a site's crawl to the site's next round; null without recrawls.
    recrawl_interval_ms bigint generated always as ((policy->>'recrawl_interval_ms')::bigint) stored,
    -- When the batch was created.
    created_at timestamptz not null default now(),
    -- When the removal of the batch began. Removal takes several steps, during which nothing is
    -- added to the batch. Null if the batch is not being removed.
    removing_since timestamptz
);

create type change_kind as enum (
    'cancel', -- open tasks are cancelled, and planned recrawls are dropped
    'retry',  -- failed tasks get a next round
    'remove'  -- tasks are deleted, and then the batch
);

-- Changes of all tasks of a batch; the newest change of each batch. An operator's call inserts or
-- replaces the row. A job changes the tasks in pieces, each in a short transaction. No lease is
-- granted for a task of a batch that is being cancelled or removed.
create table changes (
    -- The batch.
    batch_id bigint primary key references batches (id) on delete cascade,
    -- The number of the change. A later change has a higher number.
    number bigint not null generated always as identity,
    -- What is done with the tasks.
    kind change_kind not null,
    -- When the operator asked for the change.
    asked_at timestamptz not null default now(),
    -- When the last task was changed; null until then.
    finished_at timestamptz,
    -- Number of the batch's sites when the change was asked for.
    sites bigint not null,
    -- Number of these sites whose task was read.
    read bigint not null default 0,
    -- The site and the round of the last task that was read, or 0. Tasks are read in this order.
    site_id bigint not null default 0,
    round integer not null default 0, -- the round of the last task that was read
    -- Sites whose tasks could not be changed when they were read, for example because another
    -- transaction had locked them. Their tasks are read again at the end.
    left_sites bigint[] not null default '{}',
    -- Whether more sites were left than `left_sites` may contain. If so, all tasks are read again.
    left_more boolean not null default false,
    -- Number of tasks that were cancelled or removed, or of new rounds.
    changed bigint not null default 0,
    -- Number of leases that were revoked.
    leases bigint not null default 0,
    -- Number of planned recrawls that were dropped.
    recrawls bigint not null default 0
);
-- For looking up the unfinished changes, which every grant of leases does.
create index changes_unfinished on changes (batch_id) where finished_at is null;

create type unmet_cause as enum (
    'excluded',    -- no agent meets the constraints
    'take-no-work' -- the agents that meet the constraints take no work
);

-- Constraints of batches. A batch without a row may be crawled by every agent.
create table batch_constraints (
    -- The batch.
    batch_id bigint primary key references batches (id),
    -- The constraints, a `constraints::Constraints`. They include what happens to a task that no
    -- enrolled agent may crawl.
    constraints jsonb not null,
    -- Why tasks wait if no agent may crawl them; null if no task has waited for this reason.
    unmet_cause unmet_cause,
    -- Number of agents that each constraint excluded when `unmet_cause` was found, a
    -- `constraints::ExcludedAgents`.
    unmet_detail jsonb,
    constraint batch_constraints_detailed check ((unmet_cause is null) = (unmet_detail is null))
);

-- Bytes that each agent fetched for each batch with a quota, by the hour.
create table quota_spending (
    -- The batch, the agent, and when the hour began.
    batch_id bigint not null references batches (id) on delete cascade,
    agent_id bigint not null references agents (id), -- the agent
    hour timestamptz not null, -- when the hour began
    -- Number of bytes in the outcomes that were accepted in this hour.
    bytes bigint not null,
    -- Number of outcomes with at least one byte that were accepted in this hour.
    crawls bigint not null,
    primary key (batch_id, agent_id, hour)
);
create index quota_spending_by_hour on quota_spending (hour);

-- Answers to submissions: a repeated submission gets the first answer.
create table submissions (
    -- The submission's idempotency key, which the client chose.
    idempotency_key text primary key,
    -- The SHA-256 of the request. Another request with the same key is refused.
    request_sha256 bytea not null,
    -- The batch of the submission.
    batch_id bigint not null references batches (id),
    -- Number of sites that the submission added to the batch.
    added bigint not null,
    -- Number of submitted sites that were already in the batch.
    already_present bigint not null,
    -- Number of repeats in the submission, including different names of one site.
    duplicates bigint not null,
    -- Number of sites in the batch after the submission.
    batch_total bigint not null,
    -- When the submission was answered.
    created_at timestamptz not null default now()
);
create index submissions_by_time on submissions (created_at);
create index submissions_of_batch on submissions (batch_id);

create type task_state as enum (
    'submitted', -- waits to be measured
    'measuring', -- landmarks measure the site
    'located',   -- distances are known, or unknown for the cause in `unmeasured`
    'assigned',  -- an agent is chosen
    'leased',    -- the chosen agent's session may crawl the site
    'done',      -- an outcome of kind complete or truncated was accepted
    'failed',    -- an outcome of another kind was accepted, or the task was given up
    'cancelled'  -- the site is not to be crawled
);

-- Why a task failed or was cancelled, for counts and filters.
create type reason_kind as enum (
    'guard',              -- the agent's guard refused the site's address
    'robots',             -- robots.txt forbids the crawl, or could not be fetched
    'breaker',            -- too many requests failed in a row
    'blocked',            -- the crawl was blocked for another reason
    'name-not-found',     -- the name did not resolve
    'connection-refused', -- the connection was refused
    'no-connection',      -- the connection failed for another reason
    'timed-out',          -- the site did not answer in time
    'tls',                -- TLS failed
    'redirect',           -- the start page redirects out of the site, or in a circle
    'status-4xx',         -- the site answered with a status from 400 to 499
    'status-5xx',         -- the site answered with a status of 500 or more
    'broken-answer',      -- the answer was not HTTP, or was incomplete
    'unreachable',        -- the site returned no page for another reason
    'poison',             -- the task's crawls crashed, or lost their agents, too often
    'no-agent',           -- no enrolled agent may crawl the site
    'cancelled',          -- an operator cancelled the task
    'same-site'           -- the site is the same as another one of the batch
);

create type unmeasured_cause as enum (
    'failed', -- every prober tried to measure the site, and failed
    'silent'  -- no prober reported anything
);

-- Tasks: each is one round of one site of a batch.
create table tasks (
    -- The task's identifier.
    id bigint primary key generated always as identity,
    -- The batch, the site, and the round, counted from 1.
    batch_id bigint not null references batches (id),
    site_id bigint not null references sites (id), -- the site
    round integer not null default 1, -- the round
    -- The task's state.
    state task_state not null default 'submitted',
    -- When the task entered this state.
    state_since timestamptz not null default now(),
    -- Why the task failed or was cancelled, for operators; null otherwise. No statement compares
    -- this text.
    reason text,
    -- Why the task failed or was cancelled; null otherwise.
    reason_kind reason_kind,
    -- Why no round trip to the site is known; null if one is known, or before the site is measured.
    unmeasured unmeasured_cause,
    -- The prober's message about the cause in `unmeasured`, for operators. No statement compares
    -- this text.
    unmeasured_detail text,
    -- How the task's agent is chosen, as in the batch; repeated for the indexes.
    choice choice_kind not null default 'alone',
    -- Whether the task has a hold in `task_holds` and is not admitted. If so, no agent is chosen.
    held boolean not null default false,
    -- The newest assignment; null before the first.
    assignment_id bigint,
    -- The agent of the newest assignment while the task is assigned or leased; null otherwise. A
    -- trigger sets this column, because the tasks of every agent are looked up every second.
    agent_id bigint constraint tasks_agent_exists references agents (id),
    -- The token of the newest grant; 0 before the first.
    token bigint not null default 0,
    -- Number of crawls of this round that crashed: the agent was lost, or reported that the crawl
    -- panicked. After a few crashes the task fails, so that it cannot crash all agents.
    crashes integer not null default 0,
    -- When the site's next round in the batch was made; null if this is the newest round.
    retried_at timestamptz,
    -- When the next round is due. Null in three cases: this round has not ended, no next round is
    -- planned, or the next round was already made.
    recrawl_at timestamptz,
    constraint tasks_unique unique (batch_id, site_id, round),
    constraint tasks_held_are_located check (not held or state = 'located')
);
create index tasks_open on tasks (state, id) where state in ('submitted', 'measuring', 'located', 'assigned', 'leased');
create index tasks_by_site on tasks (site_id);
-- Tasks for which an agent can be chosen. Tasks whose lease was lost (token > 0) come first,
-- because an operator has waited longest for them.
create index tasks_to_choose on tasks ((token = 0), id) where state = 'located' and not held and choice = 'alone';
-- Planned tasks for which an agent can be chosen, by batch, because a plan may omit batches.
create index tasks_to_plan on tasks (batch_id, (token = 0), id)
    where state = 'located' and not held and choice = 'planned';
-- For granting an agent's tasks in order: tasks whose lease was lost come first. Also for counting
-- an agent's tasks.
create index tasks_in_turn on tasks (agent_id, state, (token = 0), id) where state in ('assigned', 'leased');
-- Finds a batch's assigned tasks whose agent the batch now excludes.
create index tasks_assigned_of_batch on tasks (batch_id, agent_id) where state = 'assigned';
-- Finds the active crawls of a batch. Long crawls may be preempted if no task of the batch waits.
-- There are at most as many active crawls as slots.
create index tasks_leased_of_batch on tasks (batch_id) where state = 'leased';
-- For counting the failed tasks of a batch, or of a period, without reading other tasks.
create index tasks_failed on tasks (batch_id, state_since) where state = 'failed' and retried_at is null;
-- Finds tasks with a due next round without reading tasks whose round is not due yet.
create index tasks_to_recrawl on tasks (recrawl_at) where recrawl_at is not null;
-- Finds the next due round of a batch, which whoever watches the batch sees.
create index tasks_to_recrawl_of_batch on tasks (batch_id, recrawl_at) where recrawl_at is not null;
-- For the job that deletes rounds some time after the next round was made.
create index tasks_followed on tasks (retried_at) where retried_at is not null;

-- Sets `tasks.agent_id` by a trigger, so that no statement can forget it. The trigger does not run
-- for grants and releases, because these do not change the agent.
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
    'address',   -- the site's address permits no further crawl
    'pause',     -- the site asked for a pause
    'breaker',   -- the site's circuit is open
    'unmet',     -- no agent may crawl the site; the cause is in `batch_constraints`
    'confirming' -- the agents that may be nearest measure the site
);

create type wait_stage as enum (
    'measuring', -- sites are measured
    'locating',  -- measured sites are placed on the map
    'choosing'   -- agents are chosen
);

create type wait_cause as enum (
    'no-agent',          -- no agent is connected
    'none-accepts-work', -- no connected agent takes work
    'no-landmarks',      -- no landmarks are chosen, and the fleet is too large to work without them
    'landmarks-away',    -- no chosen landmark is connected
    'all-quarantined',   -- every prober is quarantined
    'no-map'             -- the map is not fitted yet
);

-- Closed stages: the stages in which no task can proceed, with the cause. The cause is stored here
-- so that a change of the cause updates one row instead of all waiting tasks.
create table stage_causes (
    -- The stage.
    stage wait_stage primary key,
    -- Why the stage is closed.
    cause wait_cause not null,
    -- When the stage was closed for this cause.
    since timestamptz not null default now()
);

-- Holds: located tasks that must not be assigned yet, with the cause; at most one hold per task. A
-- hold is deleted when its cause ends, or when the task changes its state.
create table task_holds (
    -- The task.
    task_id bigint primary key references tasks (id),
    -- The task's batch and site, repeated for the indexes.
    batch_id bigint not null references batches (id),
    site_id bigint not null references sites (id), -- the site
    -- Why the task is held.
    cause hold_cause not null,
    -- The address or network that permits no further crawl; null for other causes.
    address inet,
    -- When the hold ends by itself; null if it does not end by itself.
    until timestamptz,
    -- When the hold for this cause began.
    since timestamptz not null default now(),
    -- Whether the task is admitted to the address. An admitted task may be assigned, and counts as
    -- a crawl at the address until its agent requests a permit.
    admitted boolean not null default false,
    constraint task_holds_at_an_address check ((cause = 'address') = (address is not null)),
    constraint task_holds_pauses_end check (cause <> 'pause' or until is not null),
    constraint task_holds_admitted_to_an_address check (not admitted or cause = 'address')
);
create index task_holds_at_address on task_holds (address, admitted, since, task_id) where cause = 'address';
create index task_holds_until on task_holds (until) where until is not null;
create index task_holds_unmet on task_holds (batch_id, since, task_id) where cause = 'unmet';
create index task_holds_of_site on task_holds (site_id, cause) where cause in ('breaker', 'confirming');

-- Open circuits: sites to which too many requests in a row failed. The tasks of these sites are
-- held until an operator reopens the circuits.
create table open_circuits (
    -- The site.
    site_id bigint primary key references sites (id),
    -- When the circuit opened.
    since timestamptz not null default now(),
    -- The agent whose crawl opened the circuit.
    agent_id bigint not null references agents (id),
    -- This agent's message, for operators.
    message text not null
);

-- Agents that a batch's constraints excluded when agents were chosen. Most assignments of a batch
-- share one row.
create table exclusions (
    -- The identifier of this set of excluded agents.
    id bigint primary key generated always as identity,
    -- The batch.
    batch_id bigint not null references batches (id),
    -- The excluded agents.
    agents bigint[] not null,
    -- For each element of `agents`, the constraint that excluded the agent: country, carrier,
    -- tag:NAME or quota.
    causes text[] not null,
    -- When the set was first used.
    created_at timestamptz not null default now(),
    constraint exclusions_parallel check (cardinality(agents) = cardinality(causes))
);
create index exclusions_newest on exclusions (batch_id, id);

create type assignment_cause as enum (
    'strategy',       -- the strategy chose the agent
    'explores',       -- the agent may be nearer than the best known one
    'spread',         -- the near agent with the most free slots, for a site that is probably in several places
    'next-candidate', -- the best remaining candidate, because the task left the former agent
    'rebalanced',     -- the task waited at another agent, and was moved
    'taken-back'      -- the crawl was preempted at another agent
);

create type fallback_cause as enum (
    'no-distance',       -- no agent's distance to the site is known
    'no-address',        -- the site's address is not known
    'nothing-shared',    -- no agent's address shares a bit with the site's
    'no-suffix',         -- the site's name is an IP address
    'no-position',       -- the site's position is not known
    'no-agent-position', -- no agent's position is known
    'no-map',            -- there is no map by which to choose the confirmers
    'nobody-measured',   -- no agent that measured the site is connected
    'unmeasured',        -- no prober could measure the site
    'untrusted-map'      -- there is an alarm
);

-- Assignments: choices of an agent for a task. A new choice is a new row. The unique key includes
-- the task, so that a task can only refer to its own assignments.
create table assignments (
    -- The assignment's identifier.
    id bigint primary key generated always as identity,
    -- The task.
    task_id bigint not null references tasks (id),
    -- The chosen agent.
    agent_id bigint not null references agents (id),
    -- The strategy that chose the agent. It differs from the batch's strategy if `fallback` is set.
    strategy text not null constraint assignments_strategy_known check (strategy in (
        'random', 'hash', 'kademlia', 'domain', 'geographic', 'prefix', 'gnp-balanced', 'gnp-confirmed', 'earliest-finish'
    ) or strategy ~ '^gnp-top[1-9][0-9]?$'),
    -- The seed of the random choice.
    seed bigint not null,
    -- The candidates, best first.
    candidates bigint[] not null,
    -- The candidates' round trips to the site, predicted and measured; null if unknown.
    predicted_us bigint[] not null,
    measured_us bigint[] not null, -- measured round trips
    -- The candidates' load levels; null for a candidate that could not get work.
    levels bigint[],
    -- Number of agents that could get work and were not excluded, including non-candidates.
    available integer,
    -- The excluded agents; null if no agent was excluded.
    exclusions_id bigint constraint assignments_exclusions_exist references exclusions (id),
    -- The predicted duration of the crawl; null if the strategy does not predict it.
    crawl_ms bigint constraint assignments_crawl_not_negative check (crawl_ms >= 0),
    -- Why this agent was chosen.
    cause assignment_cause not null default 'strategy',
    -- Why the batch's strategy could not be followed; null if it was followed.
    fallback fallback_cause,
    -- The details of the cause and of the fallback, a `model::ChoiceReasons`; null if the strategy
    -- was followed.
    detail jsonb,
    -- When the agent was chosen.
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

-- The progress of the job that deletes former assignments; exactly one row.
create table retention_progress (
    -- Always true; as the primary key, it permits only one row.
    singleton boolean primary key default true constraint retention_progress_one_row check (singleton),
    -- The last assignment that the job has read. For each assignment that it reads, the job deletes
    -- the earlier assignments of the same task.
    assignment_id bigint not null default 0
);
insert into retention_progress default values;

create type lease_state as enum (
    'active',    -- the session may crawl
    'completed', -- the crawl's outcome was accepted
    'released',  -- the agent returned the lease
    'expired',   -- the agent's session ended
    'revoked',   -- the task was cancelled
    'overdue'    -- the crawl went on beyond its time limit, so the scheduler took the lease back
);

-- Leases: an agent session's right to crawl a task's site.
create table leases (
    -- The task.
    task_id bigint not null references tasks (id),
    -- The fencing token. Each grant of the task increases the token.
    token bigint not null,
    -- The task's site, repeated for `leases_one_per_site`.
    site_id bigint not null references sites (id),
    -- The agent.
    agent_id bigint not null references agents (id),
    -- The agent's session, which changes if the agent reconnects and keeps the lease. This column
    -- is no foreign key, because an ended session is deleted before its leases.
    session_id bigint not null,
    -- Whether the lease is active, or how it ended.
    state lease_state not null default 'active',
    -- The address or network to which the crawl sends requests; null until the agent gets a permit
    -- for this address.
    address inet,
    -- When the lease was granted.
    granted_at timestamptz not null default now(),
    -- When the crawl's time limit (the policy's `max_duration`) is over. If the lease is active for
    -- much longer, the scheduler takes it back. Null if the lease has no limit.
    due_at timestamptz,
    -- When the lease ended; null while it is active.
    ended_at timestamptz,
    -- When the agent was told that its lease is revoked or overdue; null until then, and in any other
    -- state.
    revocation_sent_at timestamptz,
    -- The agent's message about the crash of the crawl; null if the agent reported no crash.
    crash text,
    primary key (task_id, token)
);
-- At most one task of a site is leased at a time, across batches.
create unique index leases_one_per_site on leases (site_id) where state = 'active';
create index leases_active_by_agent on leases (agent_id) where state = 'active';
create index leases_active_by_session on leases (session_id) where state = 'active';
create index leases_at_address on leases (address) where state = 'active' and address is not null;
create index leases_by_due on leases (due_at) where state = 'active';
-- For looking up the leases that were taken back from a session, which happens every second.
create index leases_revocations on leases (session_id)
    where state in ('revoked', 'overdue') and revocation_sent_at is null;

-- Checkpoints: the saved progress of active crawls, from which another agent can resume a crawl.
create table checkpoints (
    -- The task.
    task_id bigint primary key references tasks (id) on delete cascade,
    -- The token of the lease whose agent sent the checkpoint.
    token bigint not null,
    -- Number of pages that all agents of the task have fetched so far.
    pages integer not null,
    -- The state of the crawl, compressed by deflate. Only agents read it.
    state bytea not null constraint checkpoints_at_most_a_megabyte check (octet_length(state) <= 1048576),
    -- When the checkpoint was stored.
    saved_at timestamptz not null default now(),
    -- The current minimum time between two requests; null if the agent did not report it.
    interval_ms bigint,
    -- No request is sent to the site until this time; null if there is no pause.
    paused_until timestamptz,
    -- Number of responses with status 429 or 503. The count restarts after 30 minutes without such
    -- a response.
    turned_away integer not null default 0,
    -- Number of requests that failed in a row. When it reaches a limit, the circuit opens and the
    -- crawl ends.
    failed_in_a_row integer not null default 0,
    -- Number of requests in the last minute.
    recent_requests integer not null default 0,
    -- Number of requests in the last minute that failed.
    recent_errors integer not null default 0,
    -- The newest error, as a sentence; empty if there was none.
    last_error text not null default ''
);
-- The state is already compressed.
alter table checkpoints alter column state set storage external;

-- How a crawl ended.
create type outcome_kind as enum (
    'complete',   -- everything within the budgets was fetched
    'truncated',  -- a budget ended the crawl
    'blocked',    -- robots.txt, the guard or the breaker ended the crawl
    'unreachable' -- the start page was not reached
);

-- The budget that truncated a crawl.
create type crawl_budget as enum ('pages', 'bytes', 'duration', 'depth');

-- Outcomes: agents' reports of ended crawls; at most one per task.
create table outcomes (
    -- The task. The lease's foreign key suffices, and each key costs time at the removal of a task.
    task_id bigint primary key,
    -- The token of the lease that the outcome ended.
    token bigint not null,
    -- The agent that crawled.
    agent_id bigint not null references agents (id),
    -- How the crawl ended.
    kind outcome_kind not null,
    -- The budget that truncated the crawl; null unless the crawl was truncated.
    budget crawl_budget,
    -- Number of fetched pages, of fetched bytes, and of failed requests.
    pages integer not null,
    bytes bigint not null, -- number of fetched bytes
    errors integer not null, -- number of failed requests
    -- Number of pages fetched again, because the checkpoint of the former agent was incomplete.
    refetched integer not null default 0,
    -- Number of links that were omitted because they lead into traps.
    trapped integer not null default 0,
    -- When the crawl began, by the agent's clock.
    started_at timestamptz not null,
    -- The duration of the crawl, by the agent's clock.
    duration_ms bigint not null,
    -- The median time to the first byte on warm connections; null if no such time was observed.
    rtt_us bigint,
    -- The agent's message, for operators; empty if there is none.
    message text not null default '',
    -- When the outcome was accepted.
    accepted_at timestamptz not null default now(),
    constraint outcomes_of_a_lease foreign key (task_id, token) references leases (task_id, token)
);
-- For reading the durations of an agent's newest crawls, which predict when slots become free.
create index outcomes_newest_by_agent on outcomes (agent_id, accepted_at);

-- Discovered hosts: other sites to which a crawled site links, as found by the site's newest crawl
-- that found any host. At most the policy's `max_hosts` are stored per site.
create table discovered_hosts (
    -- The batch.
    batch_id bigint not null references batches (id),
    -- The other site's name, in canonical spelling like `sites.name`. It may be missing from
    -- `sites`.
    host text collate "C" not null,
    -- The site whose pages link to this host.
    site_id bigint not null references sites (id),
    -- When the first outcome that contains this host was accepted.
    found_at timestamptz not null default now(),
    -- The report of hosts reads a batch's hosts in order of their names, from this index alone.
    primary key (batch_id, host, site_id) include (found_at)
);
-- For replacing a site's hosts after a later round, and for removing a batch site by site.
create index discovered_hosts_by_site on discovered_hosts (site_id, batch_id);

-- The progress of batches. It is stored as sums, because a batch may have a million tasks. Each
-- statement that changes tasks inserts a row of differences. A job adds these rows to the sums.
-- Readers use the view `batch_progress`, which is always exact.

-- The sums: for each batch, the number of tasks in each state. Only the newest round of each site
-- counts.
create table batch_totals (
    -- The batch.
    batch_id bigint primary key references batches (id) on delete cascade,
    -- Number of tasks in each state.
    submitted bigint not null,
    measuring bigint not null, -- number of measuring tasks
    located bigint not null, -- number of located tasks
    assigned bigint not null, -- number of assigned tasks
    leased bigint not null, -- number of leased tasks
    done bigint not null, -- number of done tasks
    failed bigint not null, -- number of failed tasks
    cancelled bigint not null, -- number of cancelled tasks
    -- Number of done tasks whose crawl was truncated.
    truncated bigint not null,
    -- Number of pages and bytes in the tasks' outcomes.
    pages bigint not null,
    bytes numeric not null, -- numeric, because an agent may report any number
    -- Number of held tasks by the cause of the hold, without tasks that are admitted to an address.
    -- With these numbers, the causes of waits are known without reading the tasks.
    held_address bigint not null default 0,
    held_pause bigint not null default 0, -- number of tasks held for a pause
    held_breaker bigint not null default 0, -- number of tasks held because of an open circuit
    held_unmet bigint not null default 0, -- number of tasks held because no agent may crawl them
    held_confirming bigint not null default 0 -- number of tasks held for a confirmation
);

-- Differences that are not in the sums yet. The table has no key and no foreign key, so that
-- statements that change tasks do not wait for locks here.
create table batch_changes (
    -- The batch.
    batch_id bigint not null,
    -- When the change was made.
    at timestamptz not null default now(),
    -- The difference that is added to each sum.
    submitted bigint not null default 0,
    measuring bigint not null default 0, -- added to batch_totals.measuring
    located bigint not null default 0, -- added to batch_totals.located
    assigned bigint not null default 0, -- added to batch_totals.assigned
    leased bigint not null default 0, -- added to batch_totals.leased
    done bigint not null default 0, -- added to batch_totals.done
    failed bigint not null default 0, -- added to batch_totals.failed
    cancelled bigint not null default 0, -- added to batch_totals.cancelled
    truncated bigint not null default 0, -- added to batch_totals.truncated
    pages bigint not null default 0, -- added to batch_totals.pages
    bytes numeric not null default 0, -- added to batch_totals.bytes
    -- Number of ended crawls; 0 if the row only contains changes of states.
    crawls bigint not null default 0,
    held_address bigint not null default 0, -- added to batch_totals.held_address
    held_pause bigint not null default 0, -- added to batch_totals.held_pause
    held_breaker bigint not null default 0, -- added to batch_totals.held_breaker
    held_unmet bigint not null default 0, -- added to batch_totals.held_unmet
    held_confirming bigint not null default 0 -- added to batch_totals.held_confirming
);

-- Totals of the crawls that ended in each minute, for rates and for throughput over time. A round
-- is still counted after the next round has been made.
create table batch_minutes (
    -- The batch, and when the minute began.
    batch_id bigint not null references batches (id) on delete cascade,
    minute timestamptz not null, -- when the minute began
    -- Number of crawls that ended in this minute.
    crawls bigint not null,
    -- Number of pages and bytes of these crawls.
    pages bigint not null,
    bytes numeric not null, -- number of bytes of the crawls that ended in this minute
    primary key (batch_id, minute)
);
-- For deleting old minutes, and for reading the last few minutes.
create index batch_minutes_by_time on batch_minutes (minute);

-- The number of each batch's tasks in each state. Only the newest round of each site counts.
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
       least(coalesce(t.bytes, 0) + coalesce(c.bytes, 0), 9223372036854775807)::bigint as bytes,
       (coalesce(t.held_address, 0) + coalesce(c.held_address, 0))::bigint as held_address,
       (coalesce(t.held_pause, 0) + coalesce(c.held_pause, 0))::bigint as held_pause,
       (coalesce(t.held_breaker, 0) + coalesce(c.held_breaker, 0))::bigint as held_breaker,
       (coalesce(t.held_unmet, 0) + coalesce(c.held_unmet, 0))::bigint as held_unmet,
       (coalesce(t.held_confirming, 0) + coalesce(c.held_confirming, 0))::bigint as held_confirming
from batches b
left join batch_totals t on t.batch_id = b.id
left join (
    select batch_id, sum(submitted) as submitted, sum(measuring) as measuring, sum(located) as located,
           sum(assigned) as assigned, sum(leased) as leased, sum(done) as done, sum(failed) as failed,
           sum(cancelled) as cancelled, sum(truncated) as truncated, sum(pages) as pages, sum(bytes) as bytes,
           sum(held_address) as held_address, sum(held_pause) as held_pause, sum(held_breaker) as held_breaker,
           sum(held_unmet) as held_unmet, sum(held_confirming) as held_confirming
    from batch_changes
    group by batch_id
) c on c.batch_id = b.id;

-- Adds inserted tasks to the number of tasks in their state, and subtracts deleted tasks.
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
    -- The outcome of a round no longer counts once the next round has been made.
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

-- Adds new holds to the number of tasks held for their cause, and subtracts ended ones.
create function count_holds() returns trigger language plpgsql as $$
declare
    n bigint = case tg_op when 'INSERT' then 1 else -1 end;
begin
    insert into batch_changes (batch_id, held_address, held_pause, held_breaker, held_unmet, held_confirming)
    select batch_id, n * count(*) filter (where cause = 'address'), n * count(*) filter (where cause = 'pause'),
           n * count(*) filter (where cause = 'breaker'), n * count(*) filter (where cause = 'unmet'),
           n * count(*) filter (where cause = 'confirming')
    from changed
    where not admitted
    group by batch_id;
    return null;
end $$;
create trigger holds_counted_made after insert on task_holds
referencing new table as changed for each statement execute function count_holds();
create trigger holds_counted_ended after delete on task_holds
referencing old table as changed for each statement execute function count_holds();

create function count_holds_changed() returns trigger language plpgsql as $$
begin
    insert into batch_changes (batch_id, held_address, held_pause, held_breaker, held_unmet, held_confirming)
    select batch_id, coalesce(sum(n) filter (where cause = 'address'), 0),
           coalesce(sum(n) filter (where cause = 'pause'), 0), coalesce(sum(n) filter (where cause = 'breaker'), 0),
           coalesce(sum(n) filter (where cause = 'unmet'), 0), coalesce(sum(n) filter (where cause = 'confirming'), 0)
    from (
        select batch_id, cause, 1 as n from after where not admitted
        union all
        select batch_id, cause, -1 from before where not admitted
    ) moved
    group by batch_id;
    return null;
end $$;
create trigger holds_counted_changed after update on task_holds
referencing old table as before new table as after for each statement execute function count_holds_changed();

-- Preemptions: requests to return a lease, because another agent would end the crawl sooner. A task
-- is preempted at most once, so that no crawl moves back and forth.
create table preemptions (
    -- The task.
    task_id bigint primary key,
    -- The token of the preempted lease.
    token bigint not null,
    -- The agent of the preempted lease.
    agent_id bigint not null references agents (id),
    -- The agent that was predicted to end the crawl sooner. When the lease is released, an agent is
    -- chosen again.
    to_agent_id bigint not null references agents (id),
    -- The predicted remaining time at the current agent, and at the other agent, including the
    -- handover.
    here_ms bigint not null,
    there_ms bigint not null, -- predicted remaining time at the other agent
    -- When the preemption was decided.
    asked_at timestamptz not null default now(),
    -- When the preemption was sent to the agent, on the lease's session; null until then.
    sent_at timestamptz,
    constraint preemptions_of_a_lease foreign key (task_id, token) references leases (task_id, token) on delete cascade
);
-- For looking up an agent's unsent preemptions, which happens every second.
create index preemptions_unsent on preemptions (agent_id) where sent_at is null;
-- Finds slots reserved for crawls that were preempted recently.
create index preemptions_newest on preemptions (asked_at);

-- Confirmations: before an agent is chosen for a site, the agents that may be nearest measure it.
-- All tasks of a site share the newest confirmation. Tasks that wait for a confirmation are held.
create table confirmations (
    -- The site.
    site_id bigint primary key references sites (id),
    -- When the confirmation was requested.
    wanted_at timestamptz not null default now(),
    -- When the confirmation began; null until its confirmers are chosen.
    began_at timestamptz,
    -- When all confirmers had answered or the time limit had passed; null until then.
    ended_at timestamptz
);
create index confirmations_wanted on confirmations (wanted_at, site_id) where began_at is null and ended_at is null;
create index confirmations_open on confirmations (began_at) where began_at is not null and ended_at is null;

-- Confirmers: the agents that measure a site for a confirmation, one after another. A confirmation
-- has no confirmers if no agent can be nearer than the agents that have already measured the site.
create table confirmers (
    -- The site.
    site_id bigint not null references confirmations (site_id) on delete cascade,
    -- The agent.
    agent_id bigint not null references agents (id),
    -- When the agent was last ordered to measure; null before the first order.
    asked_at timestamptz,
    -- When the agent's measurement or failure was found; null until then.
    answered_at timestamptz,
    primary key (site_id, agent_id)
);
