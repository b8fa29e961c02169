-- R41: jobs of partitions that have started before and wait to start again.
create index job_begun on quell.job (lane_id, due_at, id)
    where state = 0 and behind is null and partition_id <> 0 and token <> 0;

-- R15: the tasks that a worker knows, as JSON. An older Quell writes none, and a worker with more than
-- a row names has none.
alter table quell.worker add column tasks text;
