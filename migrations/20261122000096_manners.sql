-- Why a crawl under way is slow or stands still.

alter table checkpoints
    -- The least time between two requests at the moment; null from agents that do not say.
    add column interval_ms bigint,
    -- Until when the site is left alone; null when it is not.
    add column paused_until timestamptz,
    -- Times the site turned the crawl away (429, 503) since it was forgiven last.
    add column turned_away integer not null default 0,
    -- Requests that failed in a row; so many as open the breaker end the crawl.
    add column failed_in_a_row integer not null default 0,
    -- Requests of the last minute, and how many of them failed.
    add column recent_requests integer not null default 0,
    add column recent_errors integer not null default 0,
    -- The newest error, a sentence; empty when there was none.
    add column last_error text not null default '';
