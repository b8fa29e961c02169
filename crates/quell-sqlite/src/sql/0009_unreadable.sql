-- R25: jobs whose rows cannot be decoded. Their state is 6, which no statement starts, joins or ends.
create table quell_unreadable (
    job_id       integer primary key,
    -- The state that the row had, whatever was written there.
    was          any,
    set_aside_at integer not null,
    reason       text not null
);
