-- R27: dead and unreadable jobs by lane, so that those of each queue are counted by themselves. A
-- partition's lane counts as its queue's. With the column, counting reads no rows.
create index quell_job_trouble on quell_job
    (state, iif(lane_id < 4294967296, lane_id, lane_id >> 32), lane_id)
    where state = 3 or state = 6;
