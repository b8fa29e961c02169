-- A file that a server of 0.1.0-alpha.1 left behind when it was killed, as `.dump` prints it.
BEGIN TRANSACTION;
CREATE TABLE quell_alert (
    name    text primary key,
    version integer not null,
    -- JSON.
    state   text not null
) without rowid;
CREATE TABLE quell_attempt (
    job_id     integer not null,
    token      integer not null,
    worker     text not null,
    started_at integer not null,
    ended_at   integer,
    outcome    integer not null,
    error      text,
    primary key (job_id, token)
) without rowid;
INSERT INTO "quell_attempt" VALUES(6,659619737165,'19312-c65b60f8',1795699288333519,1795699288362949,1,'the command ended with exit status: 1
stderr: the address does not exist');
INSERT INTO "quell_attempt" VALUES(6,1381123156845,'19312-c65b60f8',1795699288420769,1795699288441399,1,'the command ended with exit status: 1
stderr: the address does not exist');
INSERT INTO "quell_attempt" VALUES(7,1036997059146,'19312-c65b60f8',1795699288463186,1795699288608350,1,'the command ended with exit status: 1
stderr: the mail server is away');
CREATE TABLE quell_effect (
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
CREATE TABLE quell_fence (
    id    integer primary key,
    never integer not null references quell_fence (id) deferrable initially deferred
);
CREATE TABLE quell_hold (
    task_id    integer not null,
    key        text not null,
    job_id     integer not null,
    -- JSON of what frees it.
    until      text not null,
    expires_at integer not null,
    primary key (task_id, key)
) without rowid;
INSERT INTO "quell_hold" VALUES(1,'daily',4,'{"elapsed":{"secs":3600,"nanos":0}}',1795702888134535);
CREATE TABLE quell_idempotency (
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
INSERT INTO "quell_idempotency" VALUES(1,'order-7',2,'e469fa39c93cf1a42e201c83a9ef34f99a72df17baf239bdc960653fc5a82e3f',1795785687998670,1795785687998670,NULL,NULL);
CREATE TABLE quell_inbox (
    id       integer primary key autoincrement,
    triggers text not null,
    -- Why it could not be folded, for a row that is not Quell's writing.
    refused  text
);
CREATE TABLE quell_job (
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
INSERT INTO "quell_job" VALUES(1,1,1,2,0,1795699287876959,1795699287876959,NULL,NULL,NULL,NULL,0,1,0,1,0,984682731201,0,NULL,NULL,NULL,1795699287940147,1795699288077801,NULL,'19312-c65b60f8',NULL,NULL,'1',NULL,'{"got":1}');
INSERT INTO "quell_job" VALUES(2,1,1,2,0,1795699287998670,1795699287998670,NULL,NULL,NULL,NULL,0,1,0,1,0,959495067945,0,NULL,NULL,NULL,1795699288027218,1795699288043484,NULL,'19312-c65b60f8',NULL,NULL,'2',NULL,'{"got":2}');
INSERT INTO "quell_job" VALUES(3,1,1,0,0,1798291288112359,1795699288112359,NULL,NULL,1798291288112359,NULL,1,1,0,0,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'3',NULL,NULL);
INSERT INTO "quell_job" VALUES(4,1,1,0,0,1798291288134535,1795699288134535,NULL,NULL,1798291288134535,NULL,1,1,0,0,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'4',NULL,NULL);
INSERT INTO "quell_job" VALUES(5,2,2,0,0,1795702888231210,1795699288159462,1795699288231210,1795706488159462,NULL,NULL,2,2,0,0,0,0,0,'a',0,NULL,NULL,NULL,NULL,NULL,NULL,'{"fold":{"fold":"collect","cap":1000},"edge":"trailing"}','[{"k":"a","n":1},{"k":"a","n":2}]',NULL,NULL);
INSERT INTO "quell_job" VALUES(6,3,3,3,0,1795699288368706,1795699288329919,1795699288329919,NULL,NULL,1795699288368706,9,1,0,2,2,1381123156845,0,NULL,NULL,NULL,1795699288420769,1795699288441399,NULL,'19312-c65b60f8','the command ended with exit status: 1
stderr: the address does not exist',NULL,'"nowhere"',NULL,NULL);
INSERT INTO "quell_job" VALUES(7,4,4,0,0,1795702316712192,1795699288428514,1795699288428514,NULL,NULL,1795702316712192,9,1,0,1,1,1036997059146,0,NULL,NULL,NULL,1795699288463186,NULL,NULL,'19312-c65b60f8','the command ended with exit status: 1
stderr: the mail server is away',NULL,'"later"',NULL,NULL);
INSERT INTO "quell_job" VALUES(8,21474836481,5,2,0,1795699288581250,1795699288581250,NULL,NULL,NULL,NULL,0,1,0,1,0,917434680996,0,NULL,NULL,NULL,1795699288615987,1795699288660695,NULL,'19312-c65b60f8',NULL,NULL,'{"customer":"c1"}','c1',NULL);
INSERT INTO "quell_job" VALUES(9,6,6,1,0,1795699288711116,1795699288710116,NULL,1795699289710116,NULL,NULL,2,1,0,1,0,703043867898,0,'s',9,1795702888736081,1795699288736081,NULL,NULL,'19312-c65b60f8',NULL,NULL,'{"k":"s","n":1}',NULL,NULL);
INSERT INTO "quell_job" VALUES(10,6,6,0,1,1795699292804802,1795699292803802,NULL,1795699293803802,NULL,NULL,2,1,0,0,0,0,0,'s',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"k":"s","n":2}',NULL,NULL);
CREATE TABLE quell_lane (
    id       integer primary key,
    queue_id integer not null,
    task_id  integer not null,
    priority integer not null,
    unique (queue_id, task_id, priority)
);
INSERT INTO "quell_lane" VALUES(1,3,1,0);
INSERT INTO "quell_lane" VALUES(2,3,2,0);
INSERT INTO "quell_lane" VALUES(3,3,3,0);
INSERT INTO "quell_lane" VALUES(4,3,4,0);
INSERT INTO "quell_lane" VALUES(5,1,5,0);
INSERT INTO "quell_lane" VALUES(6,3,6,0);
CREATE TABLE quell_memory (
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
CREATE TABLE quell_meta (
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
INSERT INTO "quell_meta" VALUES(1,11,10,1795699292803802,8,'c63f5ae270d5bce60d8d11d9ea1784f3',0,'[[1,0,2],[1,2,2],[2,0,1],[3,3,1],[4,0,1],[5,2,1],[6,0,1],[6,1,1]]');
CREATE TABLE quell_partition (
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
INSERT INTO "quell_partition" VALUES(5,'c1',1,NULL,NULL,NULL);
CREATE TABLE quell_past (
    job_id      integer primary key,
    -- The payload that its triggers gave it; null where that was not edited.
    original    text,
    -- The job that it was in the store that accepted it, and when; null where that is this one.
    of_job      integer,
    of_first_at integer
);
CREATE TABLE quell_queue (
    id       integer primary key,
    name     text not null unique,
    settings text not null default '{}',
    deleted  integer not null default 0
);
INSERT INTO "quell_queue" VALUES(1,'bills','{"concurrency":null,"worker_concurrency":null,"partition_concurrency":2,"rate":{"limit":100,"period":{"secs":60,"nanos":0}},"partition_rate":null,"paused":false,"debounce":null}',0);
INSERT INTO "quell_queue" VALUES(2,'narrow','{"concurrency":1,"worker_concurrency":null,"partition_concurrency":null,"rate":null,"partition_rate":null,"paused":false,"debounce":null}',0);
INSERT INTO "quell_queue" VALUES(3,'default','{}',0);
CREATE TABLE quell_schedule (
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
INSERT INTO "quell_schedule" VALUES(1,'nightly','{"name":"nightly","spec":{"cron":{"expression":"0 3 * * *","zone":"Europe/Berlin"}},"catch_up":"latest","trigger":{"task":"plain","queue":"default","payload":8,"priority":0,"when":"now","keyed":null,"dedup":null}}',0,1795699283940070,NULL,1795744800000000);
CREATE TABLE quell_start (
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
INSERT INTO "quell_start" VALUES(1,'',1795699288615987,1,1,1795699348615987);
CREATE TABLE quell_tally (
    -- The lane of a queue: partitions count as their lanes.
    lane_id integer not null,
    state   integer not null,
    jobs    integer not null,
    primary key (lane_id, state)
) without rowid;
CREATE TABLE quell_task (
    id       integer primary key,
    name     text not null unique,
    settings text not null default '{}'
);
INSERT INTO "quell_task" VALUES(1,'plain','{}');
INSERT INTO "quell_task" VALUES(2,'gather','{}');
INSERT INTO "quell_task" VALUES(3,'picky','{}');
INSERT INTO "quell_task" VALUES(4,'flaky','{}');
INSERT INTO "quell_task" VALUES(5,'bill','{}');
INSERT INTO "quell_task" VALUES(6,'stuck','{}');
CREATE TABLE quell_tick (
    schedule_id integer not null,
    tick_at     integer not null,
    job_id      integer,
    -- 1 where a backfill fired it.
    backfilled  integer not null,
    primary key (schedule_id, tick_at)
) without rowid;
CREATE TABLE quell_unreadable (
    job_id       integer primary key,
    -- The state that the row had, whatever was written there.
    was          any,
    set_aside_at integer not null,
    reason       text not null
);
CREATE TABLE quell_worker (
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
INSERT INTO "quell_worker" VALUES('19312-c65b60f8',2764026319,'host',19312,'0.1.0-alpha.1','["bills","default"]',2,3600000000,1795699283958648,0,1795699283958919,1795699283958919);
CREATE INDEX quell_job_ready on quell_job (lane_id, due_at, id) where state = 0 and waits = 0;
CREATE UNIQUE INDEX quell_job_key on quell_job (task_id, key, hold) where key is not null;
CREATE INDEX quell_job_lease on quell_job (lease_until) where state = 1;
CREATE INDEX quell_job_waits on quell_job (task_id, key) where waits = 1;
CREATE INDEX quell_job_ended on quell_job (state, ended_at, lane_id) where state >= 2;
CREATE INDEX quell_job_heir on quell_job (absorbed_by) where absorbed_by is not null;
CREATE INDEX quell_hold_job on quell_hold (job_id);
CREATE INDEX quell_hold_expires on quell_hold (expires_at);
CREATE INDEX quell_memory_expires on quell_memory (expires_at);
CREATE INDEX quell_inbox_waiting on quell_inbox (id) where refused is null;
CREATE UNIQUE INDEX quell_partition_number on quell_partition (lane_id, number);
CREATE INDEX quell_partition_head on quell_partition (lane_id, head_at, head_id, free_at)
    where head_at is not null;
CREATE INDEX quell_partition_free on quell_partition (lane_id, free_at) where free_at is not null;
CREATE TRIGGER quell_partition_job_moved after update of lane_id, waits, due_at on quell_job
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
CREATE INDEX quell_start_expires on quell_start (expires_at);
CREATE INDEX quell_schedule_next on quell_schedule (next_at, name) where next_at is not null;
CREATE INDEX quell_tick_job on quell_tick (job_id, tick_at) where job_id is not null;
CREATE INDEX quell_tick_at on quell_tick (tick_at);
CREATE UNIQUE INDEX quell_past_of on quell_past (of_job, of_first_at) where of_job is not null;
CREATE INDEX quell_idempotency_job on quell_idempotency (job_id);
CREATE INDEX quell_idempotency_look on quell_idempotency (look_at);
CREATE INDEX quell_job_trouble on quell_job
    (state, iif(lane_id < 4294967296, lane_id, lane_id >> 32), lane_id)
    where state = 3 or state = 6;
CREATE VIEW quell_lane_counts as
    select lane_id, state, sum(jobs) as jobs
      from (select lane_id, state, jobs from quell_tally
             union all
            select r.value ->> 0, r.value ->> 1, r.value ->> 2
              from quell_meta m
             cross join json_each(iif(json_valid(m.recent), m.recent, null)) r)
     group by 1, 2 having sum(jobs) <> 0;
CREATE VIEW quell_counts as
    select q.name as queue, t.name as task, c.state, sum(c.jobs) as jobs
      from quell_lane_counts c
      join quell_lane l on l.id = c.lane_id
      join quell_queue q on q.id = l.queue_id
      join quell_task t on t.id = l.task_id
     group by q.name, t.name, c.state;
CREATE VIEW quell_miscount as
    select lane_id, state, sum(jobs) as jobs
      from (select iif(lane_id < 4294967296, lane_id, lane_id >> 32) as lane_id, state,
                   count(*) as jobs
              from quell_job group by 1, 2
             union all
            select lane_id, state, -jobs from quell_lane_counts)
     group by 1, 2 having sum(jobs) <> 0;
CREATE VIEW quell_recount as select count(*) as wrong from quell_miscount;
CREATE TRIGGER quell_recount_corrects instead of update on quell_recount
begin
    insert into quell_tally (lane_id, state, jobs)
    select lane_id, state, jobs from quell_miscount where true
        on conflict (lane_id, state) do update set jobs = jobs + excluded.jobs;
    delete from quell_tally where jobs = 0;
end;
DELETE FROM "sqlite_sequence";
COMMIT;
