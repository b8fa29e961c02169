-- R19: idempotency keys, and what handlers returned.

-- The same place in both, between which rows move whole.
alter table quell.job add column output text;
alter table quell.ended add column output text;

create table quell.idempotency (
    job_id      bigint not null,
    expires_at  bigint not null,
    task_id     integer not null,
    -- R37: what the job's row said when it was removed; null while it is there.
    state       smallint,
    key         text collate "C" not null,
    -- Of the payload that came first.
    fingerprint text not null,
    output      text,
    primary key (task_id, key)
);
create index idempotency_job on quell.idempotency (job_id);
create index idempotency_expires on quell.idempotency (expires_at);

create function quell.idempotency_json(key text, retention interval) returns text
language plpgsql volatile as $$
begin
    if key is null then
        if retention is not null then
            perform quell.refuse('idempotency_key', 'is missing: idempotency_retention goes with it');
        end if;
        return 'null';
    end if;
    perform quell.check_key('idempotency_key', key);
    return format('{"key":%s,"retention":%s}', to_json(key),
                  quell.span('idempotency_retention', coalesce(retention, interval '1 day')));
end
$$;

-- As before, and a member may have an idempotency key.
create or replace function quell.trigger_many(
    triggers json, dedup text default null, dedup_ttl interval default null,
    dedup_until text default null
) returns void language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    known constant text[] := array['task', 'payload', 'queue', 'key', 'min', 'max', 'max_triggers',
        'max_bytes', 'edge', 'overlap', 'fold', 'fold_cap', 'fold_fields', 'priority', 'partition', 'delay',
        'run_at',
        'dedup', 'dedup_ttl', 'dedup_until', 'idempotency_key', 'idempotency_retention'];
    one json;
    other text;
    texts text[] := '{}';
    count integer := 0;
begin
    if triggers is null or json_typeof(triggers) <> 'array' then
        perform quell.refuse('triggers', 'is not an array: give an array of objects');
    end if;
    if json_array_length(triggers) > 10000 then
        perform quell.refuse('triggers', format('has %s members, the limit is 10000: split it',
                                                json_array_length(triggers)));
    end if;
    for one in select value from json_array_elements(triggers) loop
        begin
            if json_typeof(one) <> 'object' then
                perform quell.refuse('it', 'is not an object');
            end if;
            for other in select json_object_keys(one) loop
                if other <> all (known) then
                    perform quell.refuse(other, 'is not known: it takes ' || array_to_string(known, ', '));
                end if;
            end loop;
            -- The trigger's object, with one more member before its closing brace.
            texts := texts || (left(quell.trigger_json(
                one ->> 'task', coalesce((one -> 'payload')::text, 'null'),
                coalesce(one ->> 'queue', 'default'), one ->> 'key', (one ->> 'min')::interval,
                (one ->> 'max')::interval, (one ->> 'max_triggers')::integer,
                (one ->> 'max_bytes')::integer,
                coalesce(one ->> 'edge', 'trailing'), (one ->> 'overlap')::boolean,
                coalesce(one ->> 'fold', 'last'), (one ->> 'fold_cap')::integer,
                (select array_agg(value) from json_array_elements_text(one -> 'fold_fields')),
                coalesce((one ->> 'priority')::integer, 0), one ->> 'partition',
                (one ->> 'delay')::interval,
                (one ->> 'run_at')::timestamptz, one ->> 'dedup', (one ->> 'dedup_ttl')::interval,
                one ->> 'dedup_until'), -1)
                || ',"idempotency":'
                || quell.idempotency_json(one ->> 'idempotency_key',
                                          (one ->> 'idempotency_retention')::interval) || '}');
        exception when data_exception then
            raise exception 'triggers[%]: %', count, sqlerrm
                  using errcode = 'invalid_parameter_value';
        end;
        count := count + 1;
    end loop;
    if count > 0 then
        perform quell.put('[[' || array_to_string(texts, ',') || '],'
                          || quell.dedup_json(dedup, dedup_ttl, dedup_until) || ']');
    end if;
end
$$;

-- Nobody may do what was not granted.
revoke all on function quell.idempotency_json(text, interval) from public;
