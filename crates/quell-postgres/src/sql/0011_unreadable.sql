-- R25: jobs whose rows cannot be decoded. They stand among the ended with state 6, which no statement
-- starts, joins or ends.
create table quell.unreadable (
    job_id       bigint primary key,
    set_aside_at bigint not null,
    -- The state that the row had.
    was          smallint not null,
    reason       text not null
);
