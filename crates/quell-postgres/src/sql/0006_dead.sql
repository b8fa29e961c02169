-- R26: what jobs were before someone edited their payload, or imported them. It stands beside the
-- jobs, so that a process of an earlier version, which moves whole rows, leaves it alone.

create table quell.past (
    job_id      bigint primary key,
    -- The job that it was in the store that accepted it, and when; null where that is this one.
    of_job      bigint,
    of_first_at bigint,
    -- The payload that its triggers gave it; null where nobody edited that.
    original    text
);
-- Importing a letter twice makes one job, also by two calls at once.
create unique index past_of on quell.past (of_job, of_first_at) where of_job is not null;
