-- R19: idempotency keys, and what handlers returned.

alter table quell_job add column output text;

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
