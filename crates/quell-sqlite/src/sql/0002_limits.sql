-- Partitions, rates, queues that were deleted and tasks that are paused (R31 to R33).

alter table quell_queue add column deleted  integer not null default 0;
alter table quell_task  add column settings text not null default '{}';

-- Jobs of a partition are in a lane of their own, whose number is made of the lane's and the
-- partition's: lane * 2^32 + partition.
alter table quell_job add column partition text;

create table quell_partition (
    lane_id integer not null,
    name    text not null,
    -- From 1.
    number  integer not null,
    -- The first job that may start: when it is due, and its id. Null where there is none. The
    -- trigger below keeps both up to date.
    head_at integer,
    head_id integer,
    -- A lower bound of when the partition's rate lets the next job start; null where none is known.
    free_at integer,
    primary key (lane_id, name)
) without rowid;
create unique index quell_partition_number on quell_partition (lane_id, number);
-- R30, R31: partitions of a lane by their first jobs, so that a look costs the same however many
-- partitions have windows that are not due.
create index quell_partition_head on quell_partition (lane_id, head_at, head_id, free_at)
    where head_at is not null;
create index quell_partition_free on quell_partition (lane_id, free_at) where free_at is not null;

-- A trigger makes each row of a statement dearer, so none is on inserts or on `state`: whoever inserts
-- jobs of a partition keeps its head, and whoever starts one sets its `lane_id` to what it is.
create trigger quell_partition_job_moved after update of lane_id, waits, due_at on quell_job
    when (new.partition is not null or old.partition is not null)
     and (new.state = 0 or old.state = 0)
begin
    update quell_partition
       set (head_at, head_id) = (select due_at, id from quell_job
                                  where lane_id = new.lane_id and state = 0 and waits = 0
                                  order by due_at, id limit 1)
     where lane_id = new.lane_id >> 32 and number = new.lane_id & 4294967295;
    update quell_partition
       set (head_at, head_id) = (select due_at, id from quell_job
                                  where lane_id = old.lane_id and state = 0 and waits = 0
                                  order by due_at, id limit 1)
     where lane_id = old.lane_id >> 32 and number = old.lane_id & 4294967295
       and old.lane_id <> new.lane_id;
end;

-- R31: the starts that a rate counts, of a queue (whose partition is '') and of its partitions.
create table quell_start (
    queue_id   integer not null,
    partition  text not null,
    at         integer not null,
    -- How many there were at this moment.
    starts     integer not null,
    -- How many there were up to and with this moment: differences count.
    number     integer not null,
    expires_at integer not null,
    primary key (queue_id, partition, at)
) without rowid;
create index quell_start_expires on quell_start (expires_at);
