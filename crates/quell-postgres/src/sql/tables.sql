-- The tables of the first version. `quell.` stands for the schema's name, `{channel}` for its channel.

-- One row: what the whole store shares.
create table quell.meta (
    one            boolean primary key default true check (one),
    schema_version integer not null,
    -- R4, R22: by this, callers' transactions know the store. A copy of the database keeps it.
    store_id       text    not null default replace(gen_random_uuid()::text, '-', ''),
    -- R34: whether callers' transactions notify at their commit; else workers look at the inbox.
    notifies       boolean not null default true
);
insert into quell.meta (schema_version) values (1);

-- R38: no time after this one was given out yet. A call that comes near it promises a second more, so it
-- is written about once a second. A sequence has one row, which is written in place: no call waits for
-- another's commit to raise it, no snapshot keeps an old version of it, and a reader finds the newest.
create sequence quell.promised as bigint
    minvalue -9223372036854775808 start -9223372036854775808;
-- R38: one row. No time before this one is given out any more: what had been promised when the server's
-- clock was found to have gone back.
create table quell.clock (
    one   boolean primary key default true check (one),
    floor bigint not null
);
insert into quell.clock (floor) values (-9223372036854775808);

create sequence quell.job_id as bigint;

create table quell.task  (id       integer primary key generated always as identity,
                          name     text not null unique,
                          settings text not null default '{}');
create table quell.queue (id       integer primary key generated always as identity,
                          name     text not null unique,
                          settings text not null default '{}',
                          -- R32: nothing of it starts until it is set again.
                          deleted  boolean not null default false);
create table quell.partition (id   integer primary key generated always as identity,
                              name text collate "C" not null unique);

-- A lane is a (queue, task, priority). Jobs carry its number, so that the index of jobs that may
-- start is narrow, and a claim reads only lanes of tasks that its worker knows (R28).
create table quell.lane (
    id       integer primary key generated always as identity,
    queue_id integer not null references quell.queue,
    task_id  integer not null references quell.task,
    priority smallint not null,
    unique (queue_id, task_id, priority)
);

-- Jobs that wait or run. Times are microseconds since the epoch. What is never null comes first: its
-- place in a row is the same in all of them, and the server finds it without walking there.
create table quell.job (
    id          bigint primary key,
    due_at      bigint not null,
    first_at    bigint not null,
    triggers    bigint not null default 1,
    suppressed  bigint not null default 0,
    -- R21: the fence of the newest start, which counts them above its 39 lowest bits.
    token       bigint not null default 0,
    lane_id     integer not null,
    task_id     integer not null,
    -- 0 for none.
    partition_id integer not null default 0,
    attempt     integer not null default 0,
    failures    integer not null default 0,
    lapses      integer not null default 0,
    state       smallint not null default 0,
    reason      smallint not null default 0,
    -- R11: attempts of its key may run at the same time.
    overlap     boolean not null default false,
    -- R10: a window that takes no further trigger, also while it runs.
    closed      boolean not null default false,
    -- R37: the part of quell.ended that it is in; 0 before it has ended.
    part        smallint not null default 0,
    started_at  bigint,
    -- R10: the closed window of its key that it waits behind, if that is known: claims do not look at
    -- it until that one has ended. Null says nothing: `blocked` in row.rs decides.
    behind      bigint,
    ended_at    bigint,
    -- Null where it is the same as first_at.
    last_at     bigint,
    bound_at    bigint,
    -- Null where no trigger asked for a delay.
    asked_at    bigint,
    not_before  bigint,
    absorbed_by bigint,
    -- R13: the period of a throttled key.
    period      bigint,
    key         text collate "C",
    partition   text collate "C",
    worker      text,
    error       text,
    -- JSON; null for the default shape.
    shape       text,
    payload     text not null,
    -- R19: what the handler returned.
    output      text
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000,
        autovacuum_analyze_scale_factor = 0.1, autovacuum_analyze_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
-- R30: jobs that may start, in order: of each lane those without a partition, and those with any.
create index job_ready on quell.job (lane_id, (least(partition_id, 1)), due_at, id)
    where state = 0 and behind is null;
-- R31: those of each partition, for queues that limit it.
create index job_of_partition on quell.job (lane_id, partition_id, due_at, id)
    where state = 0 and behind is null and partition_id <> 0;
-- R27: the lateness of those that wait behind a closed window.
create index job_late on quell.job (lane_id, due_at, id)
    where state = 0 and behind is not null;
create index job_behind on quell.job (behind) where behind is not null;
-- R6: at most one open window for a (task, key).
create unique index job_window on quell.job (task_id, key)
    where state = 0 and key is not null and not closed;
-- R11: at most one attempt of a (task, key), unless its task says otherwise.
create unique index job_alone on quell.job (task_id, key)
    where state = 1 and key is not null and not overlap;
-- R10, R11: whose turn it is of a (task, key) beside the open window: attempts that run, then the
-- closed windows in their order.
create index job_turn on quell.job (task_id, key, state desc, id)
    where key is not null and (state = 1 or closed);
-- R21: the jobs of a claim, which share the draw in their tokens.
create index job_drawn on quell.job ((token & 549755813887)) where state = 1;

-- R31: from where the jobs of a partition that may start are read. None of them comes before the first
-- head of its partition, so a claim reads no more heads than it needs, in their order. A transaction that
-- writes a job before them adds one, and none updates one, so no writer waits for another. In queues that
-- limit their partitions, claims replace heads that are no longer where the first job is.
create table quell.head (
    lane_id      integer not null,
    partition_id integer not null,
    due_at       bigint not null,
    job_id       bigint not null
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);
create index head_of_partition on quell.head (lane_id, partition_id, due_at, job_id);
create index head_first on quell.head (lane_id, due_at, job_id, partition_id);

-- What keeps the heads of a partition from being replaced while a job is written that comes before
-- them. All partitions share 256 of these, so that a call with many of them holds few.
create function quell.head_lock(lane integer, partition integer) returns bigint
language sql immutable as $$
    select hashtextextended('quell.head',
                            hashint8extended((lane::bigint << 32) | partition, 0) & 255)
$$;
create function quell.keep_head() returns trigger language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared(quell.head_lock(new.lane_id, new.partition_id));
    -- A transaction that keeps one snapshot may see a head that is gone (R22).
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
       or not exists (select from quell.head h
                    where h.lane_id = new.lane_id and h.partition_id = new.partition_id
                      and (h.due_at, h.job_id) <= (new.due_at, new.id))
    then
        insert into quell.head (lane_id, partition_id, due_at, job_id)
        values (new.lane_id, new.partition_id, new.due_at, new.id);
    end if;
    return null;
end
$$;
create trigger job_heads after insert or update of state, behind, due_at, lane_id, partition_id
   on quell.job for each row
 when (new.partition_id <> 0 and new.state = 0 and new.behind is null)
   execute function quell.keep_head();

-- R21: the leases of running jobs. One row for all jobs of a claim, with 0 for their ids, and one for
-- each job whose lease was renewed without the others.
create table quell.lease (
    draw   bigint not null,
    job_id bigint not null,
    until  bigint not null,
    primary key (draw, job_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);
create index lease_until on quell.lease (until);

-- R10: the window of a key that runs next.
create function quell.next_window(task integer, of text) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
    select least((select id from quell.job
                   where task_id = $1 and key = $2 collate "C" and state = 0 and closed
                   order by id limit 1),
                 (select id from quell.job
                   where task_id = $1 and key = $2 collate "C" and state = 0 and not closed
                   order by key limit 1))
$$;
-- R10: where a closed window ends, claims may look at those behind it. A call that puts a window
-- behind it locks its row meanwhile, so that this sees them all. They stay behind it while it runs: a claim
-- that found one of them a moment before it was put there finds its row changed, and looks again.
create function quell.let_through() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update quell.job set behind = null where behind = new.id;
    return null;
end
$$;
create trigger job_opens after update of closed on quell.job
   for each row when (old.closed and not new.closed) execute function quell.let_through();

-- Jobs that have ended, until their retention is over (R37). Part 0 is for those that may stay for ever:
-- dead and unreadable jobs. The others come into parts 1 to 8 in turn. A part whose jobs have all expired
-- is truncated, which costs the same however many there are, and leaves no dead rows.
create table quell.ended (like quell.job including defaults, primary key (id, part))
    partition by list (part);
do $do$
begin
    for part in 0..8 loop
        execute format('create table quell.ended_%1$s partition of quell.ended for values in (%1$s)
                        with (autovacuum_vacuum_scale_factor = 0.1)', part);
    end loop;
end
$do$;
create index ended_at on quell.ended (state, ended_at, lane_id);
create index ended_key on quell.ended (task_id, key, id) where key is not null;
create index ended_heir on quell.ended (absorbed_by) where absorbed_by is not null;
-- R27: dead and unreadable jobs, so that those of each queue are counted by themselves.
create index ended_trouble on quell.ended_0 (state, lane_id) where state in (3, 6);
-- The part that jobs come into. A sequence is read in one block, and no version of it is kept.
create sequence quell.ended_part as smallint maxvalue 8;
-- R10: rows that leave quell.job come here, with `closed` where others may be behind them. At the commit,
-- or a caller's own transaction that ends a job (R22) would hold those behind it until then. (A trigger
-- on what is deleted would have to read each row once more.)
create constraint trigger ended_arrives after insert on quell.ended deferrable initially deferred
   for each row when (new.closed) execute function quell.let_through();

-- Attempts that did not succeed; a success is on the job's row.
create table quell.attempt (
    job_id     bigint not null,
    token      bigint not null,
    started_at bigint not null,
    ended_at   bigint,
    outcome    smallint not null,
    worker     text not null,
    error      text,
    primary key (job_id, token)
);

-- R16: taken dedup keys.
create table quell.hold (
    job_id     bigint not null,
    expires_at bigint not null,
    task_id    integer not null,
    key        text collate "C" not null,
    -- JSON of what frees it.
    until      text not null,
    primary key (task_id, key)
);
create index hold_job on quell.hold (job_id);
create index hold_expires on quell.hold (expires_at);

-- R13: what is remembered of keys whose task runs a leading edge or is throttled.
create table quell.memory (
    burst_at   bigint not null,
    last_at    bigint not null,
    started_at bigint not null,
    leader     bigint not null,
    -- How many triggers the leader has counted: it may outlive the leader's row.
    triggers   bigint not null default 0,
    expires_at bigint not null,
    task_id    integer not null,
    key        text collate "C" not null,
    primary key (task_id, key)
);
create index memory_expires on quell.memory (expires_at);

-- R31: the starts that a rate counts, of a queue (whose partition is '') and of its partitions.
create table quell.start (
    at         bigint not null,
    -- How many there were at this moment.
    starts     bigint not null,
    -- How many there were up to and with this moment: differences count.
    number     bigint not null,
    expires_at bigint not null,
    queue_id   integer not null,
    partition  text collate "C" not null,
    primary key (queue_id, partition, at)
);
create index start_expires on quell.start (expires_at);

-- R4: triggers from callers' own transactions, folded by the next store call after the commit.
create table quell.inbox (
    id       bigint primary key generated always as identity,
    triggers text not null,
    -- Why it could not be folded, for a row that is not Quell's writing.
    refused  text
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);
create index inbox_waiting on quell.inbox (id) where refused is null;

-- R36: schedules, and which of their ticks fired.

create table quell.schedule (
    id         integer primary key generated always as identity,
    name       text not null unique,
    -- JSON of what was set.
    schedule   text not null,
    paused     boolean not null default false,
    -- Every tick up to here has fired by plan or never will.
    handled_at bigint not null,
    last_at    bigint,
    -- Null while it is paused, and after the last tick.
    next_at    bigint
);
create index schedule_next on quell.schedule (next_at, name) where next_at is not null;

create table quell.tick_fired (
    tick_at     bigint not null,
    job_id      bigint,
    schedule_id integer not null,
    -- Whether a backfill fired it.
    backfilled  boolean not null,
    primary key (schedule_id, tick_at)
);
create index tick_fired_job on quell.tick_fired (job_id, tick_at) where job_id is not null;
-- R37: ticks that no backfill can reach any more.
create index tick_fired_at on quell.tick_fired (tick_at);

-- R22: a settlement in a caller's transaction writes a row here and removes it, as `xmin` of a new row
-- shows whether a savepoint is open.
create unlogged table quell.probe ();

-- R23: what attempts recorded of their effects on the outside.
create table quell.effect (
    job_id   bigint not null,
    begun_at bigint not null,
    begun_by bigint not null,
    -- These three are null while only the intent is known.
    done_at  bigint,
    done_by  bigint,
    name     text collate "C" not null,
    key      text not null,
    result   text,
    primary key (job_id, name)
);

-- R26: what jobs were before someone edited their payload, or imported them.

create table quell.past (
    job_id      bigint primary key,
    -- The job that it was in the store that accepted it, and when; null where that is this one.
    of_job      bigint,
    of_first_at bigint,
    -- The payload that its triggers gave it; null where it was not edited.
    original    text
);
-- Importing a dead job twice makes one job, also by two calls at once.
create unique index past_of on quell.past (of_job, of_first_at) where of_job is not null;

-- R19: idempotency keys.
create table quell.idempotency (
    job_id      bigint not null,
    expires_at  bigint not null,
    -- R37: when upkeep looks again at a key that has expired while its job had not ended; null where it
    -- has not looked yet.
    look_at     bigint,
    task_id     integer not null,
    -- R37: what the job's row said when it was removed; null while it is there.
    state       smallint,
    key         text collate "C" not null,
    -- Of the payload that came first.
    fingerprint text not null,
    output      text,
    primary key (task_id, key)
);
create index idempotency_job on quell.idempotency (job_id);
create index idempotency_look on quell.idempotency (coalesce(look_at, expires_at));

-- R27: what is kept of alerts. One row each, changed by compare and set of its version.
create table quell.alert (
    version bigint not null,
    name    text collate "C" primary key,
    -- JSON.
    state   text not null
);

-- R25: one row for each worker process. Heartbeats change the last three columns. These have no
-- index, and the fill factor leaves room for the new version, so heartbeats are heap-only updates.
create table quell.worker (
    incarnation  bigint not null,
    pid          bigint not null,
    lease        bigint not null,
    started_at   bigint not null,
    slots        integer not null,
    worker       text collate "C" not null,
    host         text not null,
    version      text not null,
    -- JSON.
    queues       text not null,
    busy         integer not null,
    steady_since bigint not null,
    seen_at      bigint not null,
    primary key (worker, incarnation)
) with (fillfactor = 50);

-- R25: jobs whose rows cannot be decoded. They stand among the ended with state 6, which no statement
-- starts, joins or ends.
create table quell.unreadable (
    job_id       bigint primary key,
    set_aside_at bigint not null,
    -- The state that the row had.
    was          smallint not null,
    reason       text not null
);
