-- R25: one row for each worker process. Heartbeats change the last three columns, none of which is
-- indexed, and the fill factor leaves room for the new version: so they are heap-only updates.
create table quell.worker (
    incarnation  bigint not null,
    pid          bigint not null,
    lease        bigint not null,
    started_at   bigint not null,
    slots        integer not null,
    worker       text collate "C" not null,
    host         text not null,
    version      text not null,
    -- JSON.
    queues       text not null,
    busy         integer not null,
    steady_since bigint not null,
    seen_at      bigint not null,
    primary key (worker, incarnation)
) with (fillfactor = 50);

-- Roles that were given a part before this table was there may do with them what they may with
-- jobs.
do $$
declare
    given record;
begin
    for given in
        select pg_get_userbyid(a.grantee) as grantee, a.privilege_type
          from pg_class c, aclexplode(c.relacl) a
         where c.oid = 'quell.job'::regclass and a.grantee <> 0 and a.grantee <> c.relowner
           and a.privilege_type in ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    loop
        execute format('grant %s on table quell.worker to %I',
                       given.privilege_type, given.grantee);
    end loop;
end
$$;
