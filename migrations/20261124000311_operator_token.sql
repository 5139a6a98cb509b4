-- The operator's token is replaced while schedulers run: the former one is known, and may be good for a while.

alter table settings
    -- SHA-256 of the operator's token before this one; null where it was never replaced.
    add column former_operator_token_hash bytea,
    -- When it was replaced.
    add column operator_token_replaced_at timestamptz,
    -- Until when it is accepted beside the new one.
    add column former_operator_token_until timestamptz;
