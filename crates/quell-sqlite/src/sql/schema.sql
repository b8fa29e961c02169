-- The schema of a new file, which is of version 11: earlier ones were never released. Tables are prefixed
-- so that an application's own can live in the same file.

-- One row: what the whole store shares.
create table quell_meta (
    one            integer primary key check (one = 1),
    schema_version integer not null,
    -- Ids below it may have been given to jobs that were removed; larger ones are in quell_job.
    next_id        integer not null,
    -- R38: the highest store time seen; time never goes back.
    clock          integer not null,
    -- Grows with every new name and every change of a queue's settings, so that caches know.
    version        integer not null,
    -- R4, R22: by this, callers' transactions know the store. A copy of the file keeps it.
    store_id       text    not null default (lower(hex(randomblob(16)))),
    -- R21: how many running jobs have been cancelled; other processes watch it.
    cancels        integer not null default 0,
    -- JSON of the newest changes of job counts, which are not in quell_tally yet: a few rows of lane,
    -- state and jobs. Each transaction writes this row anyway, and one page more costs a small commit a
    -- tenth of its work.
    recent         text
);
insert into quell_meta (one, schema_version, next_id, clock, version) values (1, 11, 1, 0, 0);

-- Settings are JSON; those of tasks say which are paused (R33).
create table quell_task (
    id       integer primary key,
    name     text not null unique,
    settings text not null default '{}'
);
create table quell_queue (
    id       integer primary key,
    name     text not null unique,
    settings text not null default '{}',
    deleted  integer not null default 0
);

-- A lane is a (queue, task, priority). Jobs carry its number, so that the index of jobs that may
-- start is narrow, and a claim reads only lanes of tasks that its worker knows (R28).
create table quell_lane (
    id       integer primary key,
    queue_id integer not null,
    task_id  integer not null,
    priority integer not null,
    unique (queue_id, task_id, priority)
);

create table quell_job (
    id          integer primary key,
    lane_id     integer not null,
    task_id     integer not null,
    state       integer not null default 0,
    waits       integer not null default 0,
    due_at      integer not null,
    first_at    integer not null,
    -- Null where it is the same as first_at.
    last_at     integer,
    bound_at    integer,
    -- Null where no trigger asked for a delay.
    asked_at    integer,
    not_before  integer,
    reason      integer not null default 0,
    triggers    integer not null default 1,
    suppressed  integer not null default 0,
    attempt     integer not null default 0,
    failures    integer not null default 0,
    -- R21: the fence of the newest start, which counts them above its 39 lowest bits.
    token       integer not null default 0,
    lapses      integer not null default 0,
    key         text,
    -- 0 for the open window of the key, the job's id while it runs, its negative id for a closed
    -- window (R10), null once it has ended.
    hold        integer,
    lease_until integer,
    started_at  integer,
    ended_at    integer,
    absorbed_by integer,
    worker      text,
    error       text,
    -- JSON; null for the default shape.
    shape       text,
    payload     text not null,
    -- Jobs of a partition are in a lane of their own, whose number is made of the lane's and the
    -- partition's: lane * 2^32 + partition.
    partition   text,
    -- R19: what the handler returned.
    output      text
);
-- R30: jobs that may start, in order.
create index quell_job_ready on quell_job (lane_id, due_at, id) where state = 0 and waits = 0;
-- R6: at most one open window for a (task, key).
create unique index quell_job_key on quell_job (task_id, key, hold) where key is not null;
-- R21: leases by the time they expire.
create index quell_job_lease on quell_job (lease_until) where state = 1;
-- R11: windows that wait for the running attempt of their key.
create index quell_job_waits on quell_job (task_id, key) where waits = 1;
-- R37: ended jobs, oldest first; with the lane, so that counting reads no rows.
create index quell_job_ended on quell_job (state, ended_at, lane_id) where state >= 2;
create index quell_job_heir on quell_job (absorbed_by) where absorbed_by is not null;

-- Attempts that did not succeed; a success is on the job's row.
create table quell_attempt (
    job_id     integer not null,
    token      integer not null,
    worker     text not null,
    started_at integer not null,
    ended_at   integer,
    outcome    integer not null,
    error      text,
    primary key (job_id, token)
) without rowid;

-- R16: taken dedup keys.
create table quell_hold (
    task_id    integer not null,
    key        text not null,
    job_id     integer not null,
    -- JSON of what frees it.
    until      text not null,
    expires_at integer not null,
    primary key (task_id, key)
) without rowid;
create index quell_hold_job on quell_hold (job_id);
create index quell_hold_expires on quell_hold (expires_at);

-- R13: what is remembered of keys whose task runs a leading edge or is throttled.
create table quell_memory (
    task_id    integer not null,
    key        text not null,
    burst_at   integer not null,
    last_at    integer not null,
    started_at integer not null,
    leader     integer not null,
    -- How many triggers the leader has counted: it may outlive the leader's row.
    triggers   integer not null,
    expires_at integer not null,
    primary key (task_id, key)
) without rowid;
create index quell_memory_expires on quell_memory (expires_at);

-- R4: triggers from callers' own transactions, folded by the next store call after the commit.
create table quell_inbox (
    id       integer primary key autoincrement,
    triggers text not null,
    -- Why it could not be folded, for a row that is not Quell's writing.
    refused  text
);
create index quell_inbox_waiting on quell_inbox (id) where refused is null;

-- R31: partitions of lanes.
create table quell_partition (
    lane_id integer not null,
    name    text not null,
    -- From 1.
    number  integer not null,
    -- The first job that may start: when it is due, and its id. Null where there is none. The
    -- trigger below keeps both up to date.
    head_at integer,
    head_id integer,
    -- A lower bound of when the partition's rate lets the next job start; null where none is known.
    free_at integer,
    primary key (lane_id, name)
) without rowid;
create unique index quell_partition_number on quell_partition (lane_id, number);
-- R30, R31: partitions of a lane by their first jobs, so that a look costs the same however many
-- partitions have windows that are not due.
create index quell_partition_head on quell_partition (lane_id, head_at, head_id, free_at)
    where head_at is not null;
create index quell_partition_free on quell_partition (lane_id, free_at) where free_at is not null;

-- A trigger makes each row of a statement dearer, so none is on inserts or on `state`: a statement that
-- inserts jobs of a partition keeps its head, and one that starts jobs sets their `lane_id` to what it is.
create trigger quell_partition_job_moved after update of lane_id, waits, due_at on quell_job
    when (new.partition is not null or old.partition is not null)
     and (new.state = 0 or old.state = 0)
begin
    update quell_partition
       set (head_at, head_id) = (select due_at, id from quell_job
                                  where lane_id = new.lane_id and state = 0 and waits = 0
                                  order by due_at, id limit 1)
     where lane_id = new.lane_id >> 32 and number = new.lane_id & 4294967295;
    update quell_partition
       set (head_at, head_id) = (select due_at, id from quell_job
                                  where lane_id = old.lane_id and state = 0 and waits = 0
                                  order by due_at, id limit 1)
     where lane_id = old.lane_id >> 32 and number = old.lane_id & 4294967295
       and old.lane_id <> new.lane_id;
end;

-- R31: the starts that a rate counts, of a queue (whose partition is '') and of its partitions.
create table quell_start (
    queue_id   integer not null,
    partition  text not null,
    at         integer not null,
    -- How many there were at this moment.
    starts     integer not null,
    -- How many there were up to and with this moment: differences count.
    number     integer not null,
    expires_at integer not null,
    primary key (queue_id, partition, at)
) without rowid;
create index quell_start_expires on quell_start (expires_at);

-- R36: schedules, and which of their ticks fired.
create table quell_schedule (
    id         integer primary key,
    name       text not null unique,
    -- JSON of what was set.
    schedule   text not null,
    -- 1 while it is paused.
    paused     integer not null default 0,
    -- Every tick up to here has fired by plan or never will.
    handled_at integer not null,
    last_at    integer,
    -- Null while it is paused, and after the last tick.
    next_at    integer
);
create index quell_schedule_next on quell_schedule (next_at, name) where next_at is not null;

create table quell_tick (
    schedule_id integer not null,
    tick_at     integer not null,
    job_id      integer,
    -- 1 where a backfill fired it.
    backfilled  integer not null,
    primary key (schedule_id, tick_at)
) without rowid;
create index quell_tick_job on quell_tick (job_id, tick_at) where job_id is not null;
-- R37: ticks that no backfill can reach any more.
create index quell_tick_at on quell_tick (tick_at);

-- R23: what attempts recorded of their effects on the outside.
create table quell_effect (
    job_id   integer not null,
    name     text not null,
    key      text not null,
    begun_at integer not null,
    begun_by integer not null,
    -- These three are null while only the intent is known.
    done_at  integer,
    done_by  integer,
    result   text,
    primary key (job_id, name)
) without rowid;

-- R22: always empty. A row here cannot be committed: a transaction that goes on without its lease
-- gets one.
create table quell_fence (
    id    integer primary key,
    never integer not null references quell_fence (id) deferrable initially deferred
);

-- R26: what jobs were before their payload was edited, or before they were imported. It is beside the
-- jobs, so that a process of an earlier version, which writes whole rows, leaves it as it is.
create table quell_past (
    job_id      integer primary key,
    -- The payload that its triggers gave it; null where that was not edited.
    original    text,
    -- The job that it was in the store that accepted it, and when; null where that is this one.
    of_job      integer,
    of_first_at integer
);
-- A dead job that is imported twice makes one job.
create unique index quell_past_of on quell_past (of_job, of_first_at) where of_job is not null;

-- R19: idempotency keys.
create table quell_idempotency (
    task_id     integer not null,
    key         text not null,
    job_id      integer not null,
    -- Of the payload that came first.
    fingerprint text not null,
    expires_at  integer not null,
    -- When upkeep looks at it next: when it expires, and later while its job has not ended.
    look_at     integer not null,
    -- R37: what the job's row said when it was removed; null while it is there.
    state       integer,
    output      text,
    primary key (task_id, key)
) without rowid;
create index quell_idempotency_job on quell_idempotency (job_id);
create index quell_idempotency_look on quell_idempotency (look_at);

-- R27: what is kept of alerts. One row each, changed by compare and set of its version.
create table quell_alert (
    name    text primary key,
    version integer not null,
    -- JSON.
    state   text not null
) without rowid;

-- R25: one row for each worker process. Heartbeats change the last three columns.
create table quell_worker (
    worker       text not null,
    incarnation  integer not null,
    host         text not null,
    pid          integer not null,
    version      text not null,
    -- JSON.
    queues       text not null,
    slots        integer not null,
    lease        integer not null,
    started_at   integer not null,
    busy         integer not null,
    steady_since integer not null,
    seen_at      integer not null,
    primary key (worker, incarnation)
) without rowid;

-- R25: jobs whose rows cannot be decoded. Their state is 6, which no statement starts, joins or ends.
create table quell_unreadable (
    job_id       integer primary key,
    -- The state that the row had, whatever was written there.
    was          any,
    set_aside_at integer not null,
    reason       text not null
);

-- R27: dead and unreadable jobs by lane, so that those of each queue are counted by themselves. A
-- partition's lane counts as its queue's. With the column, counting reads no rows.
create index quell_job_trouble on quell_job
    (state, iif(lane_id < 4294967296, lane_id, lane_id >> 32), lane_id)
    where state = 3 or state = 6;

-- How many jobs there are of each lane and state, without counting them. Each transaction adds what it
-- changed as it commits (see `counts.rs`); a trigger would cost each job a third of its work.
create table quell_tally (
    -- The lane of a queue: partitions count as their lanes.
    lane_id integer not null,
    state   integer not null,
    jobs    integer not null,
    primary key (lane_id, state)
) without rowid;

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
