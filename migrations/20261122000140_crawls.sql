-- Crawls that have ended, and when they were under way: what reports of throughput go by.
--
-- A crawl lies between the grant of its lease and the acceptance of its outcome, by this database's clock; the agent's clock and the
-- length it reports say where in between, as far as they fit. So no clock that is wrong moves a crawl to where it cannot have been.
create view crawls as
select o.task_id, t.batch_id, t.round, t.retried_at is null as newest_round, t.assignment_id, o.agent_id, o.pages, o.bytes, o.rtt_us,
       begin.begun, finish.ended
from outcomes o
join tasks t on t.id = o.task_id
join leases l on l.task_id = o.task_id and l.token = o.token
-- No length is longer than a year here: an interval could not hold every number that an agent may report.
cross join lateral (select least(o.duration_ms, 31536000000) * interval '1 ms' as length) reported
cross join lateral (select greatest(l.granted_at, least(o.started_at, o.accepted_at - reported.length)) as begun) begin
cross join lateral (select greatest(begin.begun, least(o.accepted_at, begin.begun + reported.length)) as ended) finish;
