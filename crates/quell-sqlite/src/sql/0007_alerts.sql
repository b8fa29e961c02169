-- R27: what is kept of alerts. One row each, changed by compare and set of its version.
create table quell_alert (
    name    text primary key,
    version integer not null,
    -- JSON.
    state   text not null
) without rowid;
