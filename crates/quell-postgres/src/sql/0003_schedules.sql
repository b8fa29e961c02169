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
