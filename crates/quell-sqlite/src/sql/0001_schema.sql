-- The first schema. Tables are prefixed so that an application's own can live in the same file.

-- One row: what the whole store shares.
create table quell_meta (
    one              integer primary key check (one = 1),
    schema_version integer not null,
    -- No smaller id was ever given away; larger ones stand in quell_job.
    next_id        integer not null,
    -- R38: the highest store time seen; time never goes back.
    clock          integer not null,
    -- Grows with every new name and every change of a queue's settings, so that caches know.
    version        integer not null,
    -- R4, R22: by this, callers' transactions know the store. A copy of the file keeps it.
    store_id       text    not null default (lower(hex(randomblob(16)))),
    -- R21: how many running jobs have been cancelled; other processes watch it.
    cancels        integer not null default 0
);
insert into quell_meta (one, schema_version, next_id, clock, version) values (1, 1, 1, 0, 0);

create table quell_task  (id integer primary key, name text not null unique);
create table quell_queue (id integer primary key, name text not null unique,
                          settings text not null default '{}');

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
    payload     text not null
);
-- R30: jobs that may start, in order.
create index quell_job_ready on quell_job (lane_id, due_at, id) where state = 0 and waits = 0;
-- R6: at most one open window for a (task, key).
create unique index quell_job_key on quell_job (task_id, key, hold) where key is not null;
-- R21: leases by the time they lapse.
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
