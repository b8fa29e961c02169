-- R33: since when and by whom queues and tasks are paused. The name is `queue:NAME` or `task:NAME`. It
-- stands apart from the settings, in which an older Quell refuses what it does not know.
create table quell_pause (
    name    text primary key,
    since   integer not null,
    by_whom text
) without rowid;
