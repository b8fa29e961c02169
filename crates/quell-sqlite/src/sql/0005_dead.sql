-- R26: what jobs were before someone edited their payload, or imported them. It stands beside the
-- jobs, so that a process of an earlier version, which writes whole rows, leaves it alone.

create table quell_past (
    job_id      integer primary key,
    -- The payload that its triggers gave it; null where nobody edited that.
    original    text,
    -- The job that it was in the store that accepted it, and when; null where that is this one.
    of_job      integer,
    of_first_at integer
);
-- Importing a letter twice makes one job.
create unique index quell_past_of on quell_past (of_job, of_first_at) where of_job is not null;
