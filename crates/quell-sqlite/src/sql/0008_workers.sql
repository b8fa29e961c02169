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
