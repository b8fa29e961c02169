-- How many jobs there are of each lane and state, without counting them. Each transaction adds what it
-- changed as it commits (see `tally.rs`); a trigger would cost each job a third of its work.

create table quell_tally (
    -- The lane of a queue: partitions count as their lanes.
    lane_id integer not null,
    state   integer not null,
    jobs    integer not null,
    primary key (lane_id, state)
) without rowid;

-- JSON of the newest changes, which are not in quell_tally yet: a few rows of lane, state and jobs. Each
-- transaction writes this row anyway, and one page more costs a small commit a tenth of its work.
alter table quell_meta add column recent text;

create view quell_lane_counts as
    select lane_id, state, sum(jobs) as jobs
      from (select lane_id, state, jobs from quell_tally
             union all
            select r.value ->> 0, r.value ->> 1, r.value ->> 2
              from quell_meta m
             cross join json_each(iif(json_valid(m.recent), m.recent, null)) r)
     group by 1, 2 having sum(jobs) <> 0;

-- For operators: how many jobs there are.
create view quell_counts as
    select q.name as queue, t.name as task, c.state, sum(c.jobs) as jobs
      from quell_lane_counts c
      join quell_lane l on l.id = c.lane_id
      join quell_queue q on q.id = l.queue_id
      join quell_task t on t.id = l.task_id
     group by q.name, t.name, c.state;

-- What a count of all jobs says otherwise than the sums.
create view quell_miscount as
    select lane_id, state, sum(jobs) as jobs
      from (select iif(lane_id < 4294967296, lane_id, lane_id >> 32) as lane_id, state,
                   count(*) as jobs
              from quell_job group by 1, 2
             union all
            select lane_id, state, -jobs from quell_lane_counts)
     group by 1, 2 having sum(jobs) <> 0;

-- For operators who changed jobs by hand: `select wrong from quell_recount` counts all jobs and says how
-- many sums are wrong; `update quell_recount set wrong = 0` corrects them.
create view quell_recount as select count(*) as wrong from quell_miscount;
create trigger quell_recount_corrects instead of update on quell_recount
begin
    insert into quell_tally (lane_id, state, jobs)
    select lane_id, state, jobs from quell_miscount where true
        on conflict (lane_id, state) do update set jobs = jobs + excluded.jobs;
    delete from quell_tally where jobs = 0;
end;

update quell_recount set wrong = 0;
