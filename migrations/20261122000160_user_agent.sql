-- What a batch's crawls call themselves, NAME or NAME/VERSION; null: landfall-agent.
alter table batches
    add column user_agent text
        constraint batches_user_agent_bounded check (user_agent ~ '^[A-Za-z_-]{1,40}(/[A-Za-z0-9._-]{1,20})?$');
