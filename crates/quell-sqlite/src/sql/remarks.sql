-- What is on record beside the settings of queues and tasks: since when and by whom they are paused (R33),
-- and the declaration that was applied last (R32). It stands apart from the settings, in which an older
-- Quell refuses what it does not know.
create table quell_remarks (
    -- `queue:NAME` or `task:NAME`.
    name    text primary key,
    -- JSON.
    remarks text not null
) without rowid;
