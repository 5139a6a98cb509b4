-- What a batch asks of the agents that crawl it, and what the operator calls agents.

alter table agents
    -- What the operator calls it, for batches to ask for: lower case, sorted.
    add column tags text[] not null default '{}'
        constraint agents_tags_bounded check (cardinality(tags) <= 16);
alter table enrolments
    add column tags text[] not null default '{}'
        constraint enrolments_tags_bounded check (cardinality(tags) <= 16);

-- A batch without a row asks nothing.
create table batch_constraints (
    batch_id bigint primary key references batches (id),
    -- Any of these; none: any at all. So the carriers.
    countries text[] not null constraint batch_constraints_countries_bounded check (cardinality(countries) <= 16),
    carriers text[] not null constraint batch_constraints_carriers_bounded check (cardinality(carriers) <= 16),
    -- All of these.
    tags text[] not null constraint batch_constraints_tags_bounded check (cardinality(tags) <= 16),
    -- Bytes that one agent may fetch for the batch within 24 hours; null: any number.
    bytes_per_day bigint constraint batch_constraints_quota_positive check (bytes_per_day > 0),
    -- What becomes of a task that no enrolled agent may crawl.
    unmet text not null constraint batch_constraints_unmet_known check (unmet in ('wait', 'fail')),
    -- Why the batch's unmet tasks wait, and since when that is why; null before one did.
    reason text,
    reason_since timestamptz
);

-- Located tasks that wait because no agent may crawl them. They are parked.
create table unmet_tasks (
    task_id bigint primary key references tasks (id) on delete cascade,
    -- Repeated from the task for the index.
    batch_id bigint not null references batches (id),
    -- When the task was told why it waits.
    told_at timestamptz not null default now()
);
create index unmet_tasks_of_batch on unmet_tasks (batch_id, told_at);

-- What of a batch waits at whom: what an agent may not have any more is taken from it without a look at what else waits there.
create index tasks_assigned_of_batch on tasks (batch_id, agent_id) where state = 'assigned';
