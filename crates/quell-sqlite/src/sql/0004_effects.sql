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
