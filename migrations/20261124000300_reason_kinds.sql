-- Why a task failed or was cancelled, as a word: so that failures can be counted and asked for, whatever their sentences say.

create type reason_kind as enum (
    'guard', 'robots', 'breaker', 'blocked',
    'name-not-found', 'connection-refused', 'no-connection', 'timed-out', 'tls', 'redirect', 'status-4xx', 'status-5xx',
    'broken-answer', 'unreachable',
    'poison', 'no-agent',
    'cancelled', 'same-site'
);

alter table tasks
    -- Null while the task is open or when it is done; and of one that ended before there were kinds, or under a scheduler that has
    -- not heard of them.
    add column reason_kind reason_kind;
