-- How many jobs there are of each lane and state, without counting them.
--
-- Each statement that adds, moves or removes jobs also adds rows to `delta`: how many jobs of a lane went
-- from one place to another. A place is a state, or 7 for one that does not exist, and 8 times the part
-- of the ended jobs: so the jobs of a part that is emptied need not be counted. They commit and roll back with it, and no call waits for another's. From
-- time to time `fold_counts` takes them out and adds them to the sums in `tally`.
--
-- Neither a fold nor a reader walks over what earlier folds took out, which stays in the indexes while a
-- snapshot is open anywhere: they begin where the last fold left off, and the newest row of each lane
-- comes first.

create table quell.delta (
    -- Of the whole transaction, also within a savepoint.
    xid     xid8     not null default pg_current_xact_id(),
    jobs    bigint   not null,
    lane_id integer  not null,
    -- Places; null where they are new, and where they were removed.
    was     smallint,
    now     smallint
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
create index delta_xid on quell.delta (xid);

-- The last fold: all deltas of transactions before `upto` are in `tally`, but for those of `open`, which
-- had not ended.
create table quell.fold (
    id   bigint primary key,
    upto xid8   not null,
    open xid8[] not null
);
insert into quell.fold values (0, '0', '{}');

-- The jobs of a lane in each place, from 0 to 71. One row for each lane, replaced by each fold that
-- changes it.
create table quell.tally (
    lane_id integer  not null,
    fold    bigint   not null,
    jobs    bigint[] not null,
    primary key (lane_id, fold)
);

-- From where deltas are read. Transactions have other numbers where the database was restored into
-- another server: then all of them.
create view quell.fold_horizon as
    select f.id, f.ctid as place, case when h.here then f.upto else '0' end as upto,
           case when h.here then f.open else '{}' end as open
      from (select id, ctid, upto, open from quell.fold order by id desc limit 1) f
     cross join lateral (select f.upto <= pg_snapshot_xmax(pg_current_snapshot()) as here) h;

create view quell.fresh_delta as
    select d.ctid as place, d.xid, d.lane_id, d.was, d.now, d.jobs
      from quell.fold_horizon h join quell.delta d on d.xid >= h.upto
     union all
    select d.ctid, d.xid, d.lane_id, d.was, d.now, d.jobs
      from quell.fold_horizon h
     cross join lateral unnest(h.open) o (xid)
      join quell.delta d on d.xid = o.xid and d.xid < h.upto;

create view quell.place_counts as
    select c.lane_id, c.place, sum(c.jobs)::bigint as jobs
      from (select d.lane_id, s.place::integer, s.jobs
              from (select lane_id, was, now, sum(jobs) as jobs
                      from quell.fresh_delta group by 1, 2, 3) d
             cross join lateral (values (d.was, -d.jobs), (d.now, d.jobs)) s (place, jobs)
             where s.place is not null
             union all
            select l.id, j.place - 1, j.jobs
              from quell.lane l
             cross join lateral (select jobs from quell.tally t
                                  where t.lane_id = l.id order by t.fold desc limit 1) t
             cross join lateral unnest(t.jobs) with ordinality j (jobs, place)
             where j.jobs <> 0) c
     group by c.lane_id, c.place
    having sum(c.jobs) <> 0;

create view quell.lane_counts as
    select lane_id, (place & 7)::smallint as state, sum(jobs)::bigint as jobs
      from quell.place_counts
     group by 1, 2
    having sum(jobs) <> 0;

-- For operators: how many jobs there are.
create view quell.counts as
    select q.name as queue, t.name as task, c.state, sum(c.jobs)::bigint as jobs
      from quell.lane_counts c
      join quell.lane l on l.id = c.lane_id
      join quell.queue q on q.id = l.queue_id
      join quell.task t on t.id = l.task_id
     group by q.name, t.name, c.state;

-- Adds deltas to the tally, where there are `at_least` of them; returns how many. One call at a time does
-- this, and none waits. At most 10,000 are taken; the horizon moves where those were all.
--
-- Its own transaction stays in `open`: it may write jobs after this.
create function quell.fold_counts(at_least bigint) returns bigint
language plpgsql volatile as $$
declare
    most constant bigint := 10000;
    folded bigint;
begin
    if not pg_try_advisory_xact_lock(hashtextextended('quell.tally', 0)) then
        return 0;
    end if;
    if (select count(*) from (select from quell.fresh_delta limit greatest(at_least, 1)) d)
            < greatest(at_least, 1) then
        return 0;
    end if;
    with last as materialized (select * from quell.fold_horizon),
         taken as materialized (select place from quell.fresh_delta limit most),
         gone as (
             delete from quell.delta d where d.ctid = any(array(select place from taken))
          returning d.lane_id, d.was, d.now, d.jobs),
         next as (
             insert into quell.fold (id, upto, open)
             select l.id + 1,
                    case when s.is_all then pg_snapshot_xmax(pg_current_snapshot()) else l.upto end,
                    case when s.is_all
                         then array(select pg_snapshot_xip(pg_current_snapshot()))
                              || pg_current_xact_id()
                         else l.open end
               from last l, (select count(*) < most as is_all from taken) s
          returning id),
         passed as (
             delete from quell.fold f where f.ctid = any(array(select place from last))),
         was as materialized (
             select t.place, t.lane_id, t.jobs
               from (select distinct lane_id from gone) g
              cross join lateral (select t.ctid as place, t.lane_id, t.jobs from quell.tally t
                                   where t.lane_id = g.lane_id order by t.fold desc limit 1) t),
         replaced as (
             delete from quell.tally t where t.ctid = any(array(select place from was))),
         sums as (
             select s.lane_id, s.place, sum(s.jobs)::bigint as jobs
               from (select g.lane_id, v.place::integer, v.jobs
                       from (select lane_id, was, now, sum(jobs) as jobs from gone group by 1, 2, 3) g
                      cross join lateral (values (g.was, -g.jobs), (g.now, g.jobs)) v (place, jobs)
                      where v.place is not null
                      union all
                     -- Each place has an element.
                     select g.lane_id, n.place, 0
                       from (select distinct lane_id from gone) g
                      cross join generate_series(0, 71) n (place)
                      union all
                     select w.lane_id, j.place - 1, j.jobs
                       from was w cross join lateral unnest(w.jobs) with ordinality j (jobs, place)) s
              group by s.lane_id, s.place),
         written as (
             insert into quell.tally (lane_id, fold, jobs)
             select s.lane_id, n.id, array_agg(s.jobs order by s.place)
               from sums s, next n group by s.lane_id, n.id)
    select count(*) into folded from gone;
    return folded;
end
$$;

-- Counts all jobs, and corrects what is wrong with the sums: where someone wrote to the tables with
-- triggers off, such as by a restore of data alone. Returns how many sums were wrong.
create function quell.recount() returns bigint
language plpgsql volatile as $$
declare
    corrections bigint;
begin
    -- Two at once would both correct the same.
    perform pg_advisory_xact_lock(hashtextextended('quell.tally', 0));
    with wrong as (
        select c.lane_id, c.place, sum(c.jobs)::bigint as jobs
          from (select lane_id, least(state, 7) as place, count(*) as jobs from quell.job group by 1, 2
                union all
                select lane_id, least(state, 7) + 8 * part, count(*) from quell.ended group by 1, 2
                union all
                select lane_id, place, -jobs from quell.place_counts) c
         group by 1, 2 having sum(c.jobs) <> 0),
    corrected as (
        insert into quell.delta (lane_id, now, jobs) select lane_id, place, jobs from wrong)
    select count(*) into corrections from wrong;
    return corrections;
end
$$;

-- What statements do that add no deltas themselves. Those that most work is made of do, in the same
-- statement, and say so: a trigger costs as much as they do.

create function quell.count_arrived() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into quell.delta (lane_id, now, jobs)
    select lane_id, least(state, 7) + 8 * part, count(*) from arrived group by 1, 2;
    return null;
end
$$;

create function quell.count_left() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into quell.delta (lane_id, was, jobs)
    select lane_id, least(state, 7) + 8 * part, count(*) from departed group by 1, 2;
    return null;
end
$$;

create function quell.count_changed() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    was smallint := least(old.state, 7) + 8 * old.part;
    now smallint := least(new.state, 7) + 8 * new.part;
begin
    if old.lane_id = new.lane_id then
        insert into quell.delta (lane_id, was, now, jobs) values (old.lane_id, was, now, 1);
    else
        insert into quell.delta (lane_id, was, now, jobs)
        values (old.lane_id, was, null, 1), (new.lane_id, null, now, 1);
    end if;
    return null;
end
$$;

-- Jobs of other parts than 0 are by themselves in the sums.
create function quell.count_truncated() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if tg_table_name = 'job' then
        insert into quell.delta (lane_id, was, jobs)
        select lane_id, least(state, 7), count(*) from quell.job group by 1, 2;
    elsif tg_argv[0] = '0' then
        insert into quell.delta (lane_id, was, jobs)
        select lane_id, least(state, 7), count(*) from quell.ended_0 group by 1, 2;
    else
        insert into quell.delta (lane_id, was, jobs)
        select lane_id, place, jobs from quell.place_counts where place >> 3 = tg_argv[0]::integer;
    end if;
    return null;
end
$$;

do $do$
declare
    of_table text;
    uncounted constant text := 'current_setting(''quell_counts.counted'', true) is distinct from ''yes''';
begin
    foreach of_table in array array['job', 'ended'] loop
        execute format('create trigger %1$s_arrived after insert on quell.%1$s
                        referencing new table as arrived
                        for each statement when (%2$s) execute function quell.count_arrived()',
                       of_table, uncounted);
        execute format('create trigger %1$s_left after delete on quell.%1$s
                        referencing old table as departed
                        for each statement when (%2$s) execute function quell.count_left()',
                       of_table, uncounted);
        -- By row: to keep all old and new rows of a statement costs claims more than their count does.
        execute format('create trigger %1$s_changed after update of state, lane_id on quell.%1$s
                        for each row when ((old.state <> new.state or old.lane_id <> new.lane_id)
                                           and %2$s)
                        execute function quell.count_changed()',
                       of_table, uncounted);
    end loop;
    create trigger job_truncated before truncate on quell.job
       for each statement execute function quell.count_truncated();
    for part in 0..8 loop
        execute format('create trigger ended_truncated before truncate on quell.ended_%1$s
                        for each statement execute function quell.count_truncated(%1$s)', part);
    end loop;
end
$do$;
