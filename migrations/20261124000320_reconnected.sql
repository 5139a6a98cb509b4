-- Reconnections: an agent that lost its stream, or its scheduler for a while, is no second process with its credential.

-- What the agent's process drew at random when it started; null of agents that do not say.
alter table sessions add column process bigint;

-- Not validated: what is there satisfies the narrower one.
alter table sessions drop constraint sessions_end_cause_known;
alter table sessions add constraint sessions_end_cause_known check (
    end_cause in (
        'expired',     -- not renewed in time: its agent was lost
        'superseded',  -- another process connected with its agent's credential
        'reconnected', -- its process connected anew
        'replaced',    -- another machine was enrolled in its agent's place
        'left',        -- its agent said goodbye
        'removed',     -- the operator removed its agent
        'restored'     -- the database went back to a moment in it
    )
) not valid;
