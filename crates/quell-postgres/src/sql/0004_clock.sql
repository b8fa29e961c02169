-- R38: the clock, asked by every call. In this language a function's statements are planned once for
-- a session; in SQL they were planned anew by each statement that asked.

create or replace function quell.peek(asked bigint, seen bigint) returns bigint
language plpgsql volatile as $$
begin
    return greatest(coalesce(asked, (extract(epoch from clock_timestamp()) * 1000000)::bigint),
                    seen, (select max(at) from quell.clock));
end
$$;

create or replace function quell.tick(asked bigint, seen bigint) returns bigint
language plpgsql volatile as $$
declare
    now bigint := greatest(
        coalesce(asked, (extract(epoch from clock_timestamp()) * 1000000)::bigint),
        seen, (select max(at) from quell.clock));
begin
    update quell.clock c set at = now
     where c.slot = (select slot from quell.clock order by slot limit 1 for update skip locked)
       and c.at < now;
    return now;
end
$$;
