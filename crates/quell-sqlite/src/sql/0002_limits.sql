-- Partitions, rates, queues that were deleted and tasks that are paused (R31 to R33).

alter table quell_queue add column deleted  integer not null default 0;
alter table quell_task  add column settings text not null default '{}';

-- Jobs of a partition stand in a lane of their own, whose number is made of the lane's and the
-- partition's: lane * 2^32 + partition. So the partitions of a lane stand side by side in the index
-- of jobs that may start, and those in which nothing waits cost nothing.
alter table quell_job add column partition text;

create table quell_partition (
    lane_id integer not null,
    name    text not null,
    -- From 1.
    number  integer not null,
    primary key (lane_id, name)
) without rowid;
create unique index quell_partition_number on quell_partition (lane_id, number);

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
