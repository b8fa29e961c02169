-- R41: jobs of partitions that have started before and may start again, of each lane without its partitions.
create index quell_job_begun on quell_job (lane_id >> 32, due_at, id)
    where state = 0 and waits = 0 and token <> 0 and partition is not null;

-- R15: the tasks that a worker knows, as JSON. An older Quell writes none, and a worker with more than
-- a row names has none.
alter table quell_worker add column tasks text;
