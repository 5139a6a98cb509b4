-- How long an agent's newest crawls took says how soon its slots are free. The index serves what the former one did as well.
create index outcomes_newest_by_agent on outcomes (agent_id, accepted_at);
drop index outcomes_by_agent;
