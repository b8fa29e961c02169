-- R27: dead and unreadable jobs by lane, so that those of each queue are counted by themselves.
create index ended_trouble on quell.ended (state, lane_id) where state in (3, 6);
