-- The first schema. `quell.` stands for the schema's name, `{channel}` for its channel.

-- One row: what the whole store shares.
create table quell.meta (
    one            boolean primary key default true check (one),
    schema_version integer not null,
    -- R4, R22: by this, callers' transactions know the store. A copy of the database keeps it.
    store_id       text    not null default replace(gen_random_uuid()::text, '-', '')
);
insert into quell.meta (schema_version) values (1);

-- R38: the highest store time seen. Each write raises whichever row nobody else is writing, so that
-- writers never wait for each other; the highest row counts.
create table quell.clock (
    slot smallint primary key,
    at   bigint not null
) with (fillfactor = 25);
insert into quell.clock select slot, -9223372036854775808 from generate_series(1, 32) slot;

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
    lease_until bigint,
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
    payload     text not null
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000,
        autovacuum_analyze_scale_factor = 0.1, autovacuum_analyze_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
-- R30: jobs that may start, in order. The partitions of a lane stand side by side, so that those in
-- which nothing waits cost nothing (R31).
create index job_ready on quell.job (lane_id, partition_id, due_at, id)
    where state = 0 and behind is null;
-- R27: the lateness of those that wait behind a closed window.
create index job_late on quell.job (lane_id, partition_id, due_at, id)
    where state = 0 and behind is not null;
create index job_behind on quell.job (behind) where behind is not null;
-- R6: at most one open window for a (task, key).
create unique index job_window on quell.job (task_id, key)
    where state = 0 and key is not null and not closed;
-- R10: the closed ones beside it.
create index job_closed on quell.job (task_id, key, id) where state = 0 and closed;
-- R11: at most one attempt of a (task, key), unless its task says otherwise.
create unique index job_alone on quell.job (task_id, key)
    where state = 1 and key is not null and not overlap;
create index job_running on quell.job (task_id, key) where state = 1 and key is not null;
-- R21: leases by the time they lapse.
create index job_lease on quell.job (lease_until) where state = 1;

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
-- R10: where a closed window ends, claims may look at those behind it. Whoever puts a window behind
-- it holds its row meanwhile, so that this sees them all. They stay behind it while it runs: a claim
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

-- Jobs that have ended, until their retention is over (R37).
create table quell.ended (like quell.job including defaults, primary key (id))
    with (autovacuum_vacuum_scale_factor = 0.1);
create index ended_at on quell.ended (state, ended_at, lane_id);
create index ended_key on quell.ended (task_id, key, id) where key is not null;
create index ended_heir on quell.ended (absorbed_by) where absorbed_by is not null;
-- R10: whoever leaves quell.job comes here, with `closed` where others may be behind it. At the commit, or a caller's own transaction that ends a
-- job (R22) would hold those behind it until then. (A trigger on what is deleted would have to read
-- each row once more.)
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

-- The lane of these names, made where there is none. Whoever comes second waits, and finds it.
create function quell.partition_of(partition_name text) returns integer
language plpgsql volatile as $$
declare
    found_id integer;
begin
    insert into quell.partition (name) values (partition_name) on conflict do nothing;
    select id into strict found_id from quell.partition where name = partition_name;
    return found_id;
end
$$;

create function quell.lane_of(queue_name text, task_name text, of_priority smallint)
returns quell.lane language plpgsql volatile as $$
declare
    lane quell.lane;
begin
    insert into quell.queue (name) values (queue_name) on conflict do nothing;
    insert into quell.task (name) values (task_name) on conflict do nothing;
    insert into quell.lane (queue_id, task_id, priority)
    select q.id, t.id, of_priority
      from quell.queue q, quell.task t where q.name = queue_name and t.name = task_name
        on conflict do nothing;
    select l.* into strict lane
      from quell.lane l
      join quell.queue q on q.id = l.queue_id and q.name = queue_name
      join quell.task t on t.id = l.task_id and t.name = task_name
     where l.priority = of_priority;
    return lane;
end
$$;

-- The store's time: what is asked for, or the server's clock, but never earlier than was seen.
create function quell.peek(asked bigint, seen bigint) returns bigint
language sql volatile as $$
    select greatest(coalesce(asked, (extract(epoch from clock_timestamp()) * 1000000)::bigint),
                    seen, (select max(at) from quell.clock))
$$;

-- As peek, and puts it on record. Skips rows that others are writing, so nobody waits.
create function quell.tick(asked bigint, seen bigint) returns bigint
language plpgsql volatile as $$
declare
    now bigint := quell.peek(asked, seen);
begin
    update quell.clock c set at = now
     where c.slot = (select slot from quell.clock order by slot limit 1 for update skip locked)
       and c.at < now;
    return now;
end
$$;

-- Takes triggers as Quell's clients write them into the caller's transaction (R4). Its owner's
-- rights are used, so that a producer needs none on the tables.
create function quell.put(triggers text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    if octet_length(put.triggers) > 134217728 then
        raise exception 'triggers: the batch has % bytes, the limit is 134217728: split it',
              octet_length(put.triggers) using errcode = '22023';
    end if;
    insert into quell.inbox (triggers) values (put.triggers);
    -- Told once by the commit, however often it is asked for.
    perform pg_notify('{channel}', '0 -9223372036854775808 *');
end
$$;

-- Ends a running attempt well in the caller's transaction (R22). With a lost lease it raises an
-- error, so that the transaction cannot commit. The row stays locked until its end: nobody takes
-- the lease back meanwhile.
create function quell.settle(job_id bigint, token bigint, asked bigint) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    now bigint := quell.peek(asked, null);
    j quell.job;
    w record;
begin
    delete from quell.job
     where id = settle.job_id and job.token = settle.token and state + 0 = 1 and lease_until + 0 > now
 returning * into j;
    if not found then
        raise exception 'the lease of job % was lost: this transaction must not commit',
              settle.job_id using errcode = '40002';
    end if;
    j.state := 2;
    j.failures := 0;
    j.lease_until := null;
    j.ended_at := now;
    insert into quell.ended select j.*;
    -- R11, R31: what the key or the queue held back may start after the commit.
    for w in
        select q.name, n.due_at
          from quell.job n
          join quell.lane l on l.id = n.lane_id
          join quell.queue q on q.id = l.queue_id
         where n.id = quell.next_window(j.task_id, j.key)
         union
        select q.name, -9223372036854775808
          from quell.lane l
          join quell.queue q on q.id = l.queue_id
         where l.id = j.lane_id and q.settings <> '{}'
    loop
        perform pg_notify('{channel}', '0 ' || w.due_at || ' ' || w.name);
    end loop;
end
$$;
