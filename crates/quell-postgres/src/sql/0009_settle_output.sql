-- As before (R22), with what the handler returned (R19).
create function quell.settle(job_id bigint, token bigint, asked bigint, output text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform quell.settle(settle.job_id, settle.token, settle.asked);
    update quell.ended e set output = settle.output where e.id = settle.job_id;
end
$$;

-- Nobody may do what was not granted; who may settle without an output may do it with one.
revoke all on function quell.settle(bigint, bigint, bigint, text) from public;
do $$
declare
    given record;
begin
    for given in
        select pg_get_userbyid(a.grantee) as grantee
          from pg_proc p, aclexplode(p.proacl) a
         where p.oid = 'quell.settle(bigint, bigint, bigint)'::regprocedure
           and a.grantee <> 0 and a.grantee <> p.proowner
    loop
        execute format('grant execute on function quell.settle(bigint, bigint, bigint, text) to %I',
                       given.grantee);
    end loop;
end
$$;
