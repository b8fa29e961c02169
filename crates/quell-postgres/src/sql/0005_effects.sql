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
