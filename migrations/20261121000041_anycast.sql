-- Whether a site stands in one place, as its landmarks' measurements say; the newest judgement.
create table site_verdicts (
    site_id bigint primary key references sites (id),
    -- Suspected to stand in several places: anycast, CDN, GeoDNS.
    suspect boolean not null,
    -- 0 to 1; 0 where it is not suspect.
    confidence double precision not null constraint site_verdicts_confidence_range check (confidence between 0 and 1),
    -- What says so, for people; empty where it is not suspect.
    evidence text not null,
    judged_at timestamptz not null default now(),
    constraint site_verdicts_evidence_of_suspects check (suspect = (evidence <> ''))
);
-- How the strategy was followed where that needs saying; null otherwise. Not a failure: see fallback_reason.
alter table assignments add column note text;
