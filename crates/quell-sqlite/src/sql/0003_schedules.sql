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
