-- R27: what is kept of alerts. One row each, changed by compare and set of its version.
create table quell.alert (
    version bigint not null,
    name    text collate "C" primary key,
    -- JSON.
    state   text not null
);

-- Roles that were given a part before these tables were there may do with them what they may with
-- jobs.
do $$
declare
    given record;
    made text;
begin
    for given in
        select pg_get_userbyid(a.grantee) as grantee, a.privilege_type
          from pg_class c, aclexplode(c.relacl) a
         where c.oid = 'quell.job'::regclass and a.grantee <> 0 and a.grantee <> c.relowner
           and a.privilege_type in ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    loop
        foreach made in array array['effect', 'past', 'idempotency', 'alert'] loop
            execute format('grant %s on table quell.%I to %I',
                           given.privilege_type, made, given.grantee);
        end loop;
    end loop;
end
$$;
