-- The store's functions.

-- Returns the partitions of these names, and creates the missing ones. A second caller waits for the
-- first and then finds its rows. An insert takes a number of the identity even where it finds a
-- conflict, so only missing names are inserted.
create function quell.partitions_of(names text[]) returns setof quell.partition
language plpgsql volatile as $$
declare
    missing text[];
begin
    select array_agg(n.name order by n.name) into missing
      from unnest(names) n (name)
     where not exists (select from quell.partition p where p.name = n.name collate "C");
    if missing is not null then
        insert into quell.partition (name) select unnest(missing) on conflict do nothing;
    end if;
    return query select p.* from unnest(names) n (name)
                   join quell.partition p on p.name = n.name collate "C";
end
$$;

-- The lane of these names, made where there is none.
create function quell.lane_of(queue_name text, task_name text, of_priority smallint)
returns quell.lane language plpgsql volatile as $$
declare
    lane quell.lane;
begin
    if not exists (select from quell.queue where name = queue_name) then
        insert into quell.queue (name) values (queue_name) on conflict do nothing;
    end if;
    if not exists (select from quell.task where name = task_name) then
        insert into quell.task (name) values (task_name) on conflict do nothing;
    end if;
    insert into quell.lane (queue_id, task_id, priority)
    select q.id, t.id, of_priority
      from quell.queue q, quell.task t
     where q.name = queue_name and t.name = task_name
       and not exists (select from quell.lane l
                        where l.queue_id = q.id and l.task_id = t.id and l.priority = of_priority)
        on conflict do nothing;
    select l.* into strict lane
      from quell.lane l
      join quell.queue q on q.id = l.queue_id and q.name = queue_name
      join quell.task t on t.id = l.task_id and t.name = task_name
     where l.priority = of_priority;
    return lane;
end
$$;

-- R38: the store's time: the server's clock, and never earlier than it was; beside it, the clock and
-- what was promised. The clock has gone back where it is more than a second before that, or before what
-- this process has `seen`. Then everything that was promised may have been given out, and counts as
-- seen, until the clock gets there.
--
-- A moment may be asked for: by tests, whose clock this is not, and by a transaction that goes on at its
-- own time. What was promised counts as seen then unless it is still to come.
create function quell.reckon(asked bigint, seen bigint, out now bigint, out host bigint, out upto bigint)
language plpgsql volatile as $$
declare
    lowest bigint;
begin
    select p.last_value, c.floor into upto, lowest from quell.promised p, quell.clock c;
    -- After what was promised: another call promises more at any moment.
    host := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
    if asked is not null then
        now := greatest(asked, seen, lowest,
                        case when host + 1000000 < upto then upto else least(host, upto) end);
    elsif host + 1000000 < upto or host < seen and lowest < seen then
        now := greatest(seen, lowest, upto);
    else
        now := greatest(host, lowest);
    end if;
end
$$;

-- The store's time, for a read. In this language a function's statements are planned once for a
-- session; in SQL, by each statement that asks.
create function quell.peek(asked bigint, seen bigint) returns bigint
language plpgsql volatile as $$
begin
    return (select r.now from quell.reckon(asked, seen) r);
end
$$;

-- Returns the store's time for a write, and renews the promise before it runs out. No caller waits for
-- another.
create function quell.tick(asked bigint, seen bigint) returns bigint
language plpgsql volatile as $$
declare
    r record;
begin
    select * into r from quell.reckon(asked, seen);
    if asked is not null then
        if r.now > r.upto then
            perform quell.promise(r.now);
        end if;
        return r.now;
    end if;
    if r.now > r.host then
        update quell.clock c set floor = r.now
         where c.one = (select one from quell.clock where floor < r.now for update skip locked);
    end if;
    if r.host + 500000 > r.upto then
        perform quell.promise(r.host + 1000000);
    end if;
    return r.now;
end
$$;

-- Promises that no time after this one is given out. The lock keeps an earlier promise from overwriting
-- a later one. A caller that does not get the lock at once promises all the same: the lock is held for
-- less time than a statement takes.
create function quell.promise(upto bigint) returns void
language plpgsql volatile as $$
declare
    key    bigint := hashtextextended('quell.promised', 0);
    locked boolean := pg_try_advisory_lock(key);
begin
    if upto > (select last_value from quell.promised) then
        perform setval('quell.promised', upto);
    end if;
    if locked then
        perform pg_advisory_unlock(key);
    end if;
end
$$;

-- Notifies other processes at the commit. Where the server's queue of notifications is half full it
-- does not: a commit that finds the queue full fails, and polling finds the work as well (R39).
create function quell.hint(hint text) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if pg_notification_queue_usage() < 0.5 then
        perform pg_notify('{channel}', hint);
    end if;
end
$$;

-- R34: whether callers' transactions notify at their commit. The server lets such commits through one by
-- one, so a busy producer turns it off: then workers look at the inbox all the time.
create function quell.notify_in_transactions(enabled boolean) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if enabled is null then
        raise exception 'enabled is null: give true or false' using errcode = '22023';
    end if;
    update quell.meta set notifies = enabled where notifies <> enabled;
    if found then
        perform quell.hint('settings 0');
    end if;
end
$$;

-- Takes triggers as Quell's clients write them into the caller's transaction (R4). Its owner's
-- rights are used, so that a producer needs none on the tables. A `silent` caller notifies after the
-- commit by itself.
--
-- R40: what is too large to be taken in is refused here. What else does not do is set aside when it is
-- taken in: to find it here would be to read each batch twice, and what was checked before a long
-- transaction may no longer do after it.
create function quell.put(triggers text, silent boolean default false) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    if octet_length(put.triggers) > 134217728 then
        raise exception 'triggers: the batch has % bytes, the limit is 134217728: split it',
              octet_length(put.triggers) using errcode = '22023';
    end if;
    insert into quell.inbox (triggers) values (put.triggers);
    -- The commit sends equal notifications of a transaction once.
    if put.silent is not true and (select m.notifies from quell.meta m) then
        perform quell.hint('0 -9223372036854775808 *');
    end if;
end
$$;

-- Ends a running attempt well in the caller's transaction (R22), with what the handler returned (R19).
-- With a lost lease it raises an error, so that the transaction cannot commit. The row stays locked
-- until the transaction ends, so no worker takes the job back meanwhile.
--
-- Inside a savepoint it does nothing and says false: rolled back alone, the savepoint would take the
-- end of the job or the error with it, and what was written before it could still commit.
--
-- A transaction that keeps one snapshot does not see later renewals. There a lease has ended where the
-- job was taken back, which every snapshot shows.
create function quell.settle(job_id bigint, token bigint, asked bigint, output text default null)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    now bigint := quell.peek(asked, null);
    j quell.job;
    w record;
    p record;
begin
    insert into quell.probe default values returning ctid, xmin into p;
    delete from quell.probe where ctid = p.ctid;
    if p.xmin <> pg_current_xact_id()::xid then
        return false;
    end if;
    -- It counts itself what it moves: see counts.sql.
    perform set_config('quell_counts.counted', 'yes', true);
    delete from quell.job o
     where o.id = settle.job_id and o.token = settle.token and o.state + 0 = 1
 returning * into j;
    if not found
       or current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
          and not coalesce((select coalesce(max(x.until) filter (where x.job_id = j.id), max(x.until))
                              from quell.lease x
                             where x.draw = (j.token & 549755813887) and x.job_id in (0, j.id)) > now,
                           false)
    then
        raise exception 'the lease of job % was lost: this transaction must not commit',
              settle.job_id using errcode = '40002';
    end if;
    j.state := 2;
    j.part := (select last_value from quell.ended_part);
    j.failures := 0;
    j.ended_at := now;
    j.output := settle.output;
    insert into quell.ended select j.*;
    insert into quell.delta (lane_id, was, now, jobs) values (j.lane_id, 1, 2 + 8 * j.part, 1);
    perform set_config('quell_counts.counted', '', true);
    -- R38: this time stands on record.
    if asked is null and now + 500000 > (select last_value from quell.promised) then
        perform quell.promise(now + 1000000);
    end if;
    -- R11, R31: what the key or the queue held back may start after the commit, which may be late: by then
    -- the window may be due earlier.
    for w in
        select q.name, -9223372036854775808 as due_at
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
        if (select m.notifies from quell.meta m) then
            perform quell.hint('0 ' || w.due_at || ' ' || w.name);
        else
            -- R34: for workers that look at the inbox.
            insert into quell.inbox (triggers) values ('wake ' || w.name);
        end if;
    end loop;
    return true;
end
$$;

-- R37: truncates a part of the ended jobs whose jobs have all ended by then, and returns how many there
-- were. Null where one has not, or where another transaction keeps using the part: everyone else who
-- needs it would wait behind this call, so it waits for a moment only.
create function quell.empty_part(part smallint, upto bigint) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms' as $$
declare
    is_over boolean;
    jobs bigint;
begin
    begin
        execute format('lock table quell.ended_%s in access exclusive mode', part);
    exception when lock_not_available then
        return null;
    end;
    execute format(
        'select not exists (select from quell.ended_%1$s where state < 2)
            and not exists (select from quell.ended_%1$s where state = 3)
            and not exists (select from quell.ended_%1$s where state > 5)
            and not exists (select from unnest(''{2,4,5}''::smallint[]) s (state)
                             cross join lateral (
                                   select ended_at from quell.ended_%1$s e
                                    where e.state = s.state order by ended_at desc limit 1) e
                             where e.ended_at is null or e.ended_at > $1)', part)
       into is_over using upto;
    if not is_over then
        return null;
    end if;
    select coalesce(sum(c.jobs), 0) into jobs from quell.place_counts c where c.place >> 3 = part;
    begin
        execute format('truncate quell.ended_%s', part);
    exception when lock_not_available then
        -- Its large values are being vacuumed.
        return null;
    end;
    return jobs;
end
$$;
