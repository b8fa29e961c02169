-- R33: since when and by whom queues and tasks are paused. The name is `queue:NAME` or `task:NAME`. It
-- stands apart from the settings, in which an older Quell refuses what it does not know.
create table quell.pause (
    since   bigint not null,
    name    text collate "C" primary key,
    by_whom text
);
