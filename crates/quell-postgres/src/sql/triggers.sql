-- R4: triggers from any language, in the caller's own transaction. What is refused is refused before
-- anything is written, with an error that names the argument. A trigger that is taken stands in the
-- inbox in the very form in which Quell's clients write theirs.

create function quell.refuse(argument text, why text) returns void
language plpgsql volatile as $$
begin
    raise exception '% %', argument, why using errcode = 'invalid_parameter_value';
end
$$;

create function quell.check_name(argument text, given text) returns void
language plpgsql volatile as $$
begin
    if given is null or octet_length(given) not between 1 and 128 then
        perform quell.refuse(argument, format('name has %s bytes: it takes 1 to 128',
                                              coalesce(octet_length(given), 0)));
    end if;
    if given !~ '^[A-Za-z0-9_.:/-]+$' then
        perform quell.refuse(argument, format('name %L does not do: use letters, digits and _ - . : /',
                                              given));
    end if;
end
$$;

create function quell.check_key(argument text, given text) returns void
language plpgsql volatile as $$
begin
    if given = '' then
        perform quell.refuse(argument, 'is empty: give one, or none');
    end if;
    if octet_length(given) > 512 then
        perform quell.refuse(argument, format('has %s bytes, the limit is 512: hash the long part',
                                              octet_length(given)));
    end if;
end
$$;

-- A time span as the inbox has it; a month has 30 days.
create function quell.span(argument text, given interval) returns text
language plpgsql volatile as $$
declare
    micros bigint;
begin
    if extract(epoch from given) > 9223372036854 then
        perform quell.refuse(argument, format('is %s: give less than 290000 years', given));
    end if;
    micros := greatest(extract(epoch from given) * 1000000, 0)::bigint;
    if micros <= 0 then
        perform quell.refuse(argument, format('is %s: give a time span above zero', given));
    end if;
    return format('{"secs":%s,"nanos":%s}', micros / 1000000, micros % 1000000 * 1000);
end
$$;

create function quell.dedup_json(dedup text, ttl interval, until text) returns text
language plpgsql volatile as $$
begin
    if dedup is null then
        if ttl is not null or until is not null then
            perform quell.refuse('dedup', 'is missing: dedup_ttl and dedup_until go with it');
        end if;
        return 'null';
    end if;
    perform quell.check_key('dedup', dedup);
    if ttl is not null and until is not null then
        perform quell.refuse('dedup_until', 'and dedup_ttl were both given: give one');
    end if;
    if until not in ('started', 'done') then
        perform quell.refuse('dedup_until', format('is %L: give started or done', until));
    end if;
    return format('{"key":%s,"until":%s}', to_json(dedup),
                  coalesce(to_json(until)::text,
                           format('{"elapsed":%s}',
                                  quell.span('dedup_ttl', coalesce(ttl, interval '1 hour')))));
end
$$;

-- How payloads become one (R10), with a key or without.
create function quell.fold_json(fold text, fold_cap integer, fold_fields text[]) returns text
language plpgsql volatile as $$
#variable_conflict use_variable
begin
    case fold
        when 'last', 'first', 'merge' then return format('{"fold":%s}', to_json(fold));
        when 'collect' then
            if coalesce(fold_cap, 1000) < 1 then
                perform quell.refuse('fold_cap', format('is %s: give 1 or more', fold_cap));
            end if;
            return format('{"fold":"collect","cap":%s}', coalesce(fold_cap, 1000));
        when 'accumulate' then
            if coalesce(cardinality(fold_fields), 0) = 0 then
                perform quell.refuse('fold_fields', 'is missing: name the arrays to concatenate');
            end if;
            return format('{"fold":"accumulate","fields":%s}', to_json(fold_fields));
        else perform quell.refuse('fold', format(
            'is %L: give last, first, merge, collect or accumulate', fold));
    end case;
    return null;
end
$$;

-- R7, R40: refuses a delay beyond the trigger's own max, or that of its queue, on the store's clock.
create function quell.check_delay(
    queue text, key text, min interval, max interval, delay interval, run_at timestamptz
) returns void language plpgsql volatile as $$
#variable_conflict use_variable
declare
    remedy constant text := 'longer than max (%s): raise max, or trigger without a key';
    longest interval := coalesce(max, min);
    waits interval := delay;
begin
    if key is null or delay is null and run_at is null then
        return;
    end if;
    if longest is null then
        select make_interval(secs => (t.max ->> 'secs')::double precision
                                     + (t.max ->> 'nanos')::double precision / 1e9)
          into longest
          from quell.queue q cross join lateral (
               select q.settings::json -> 'debounce' -> 'max' as max) t
         where q.name = queue;
        longest := coalesce(longest, interval '60 s');
    end if;
    if run_at is not null then
        waits := make_interval(secs => extract(epoch from run_at)::double precision
                                       - quell.peek(null, null) / 1e6::double precision);
    end if;
    if waits > longest then
        perform quell.refuse(case when run_at is null then 'delay' else 'run_at' end,
                             format('is %s away, ' || remedy, waits, longest));
    end if;
end
$$;

create function quell.keyed_json(
    key text, min interval, max interval, max_triggers integer, max_bytes integer,
    edge text, "overlap" boolean
) returns text language plpgsql volatile as $$
#variable_conflict use_variable
begin
    if key is null then
        if min is not null or max is not null or max_triggers is not null
                or max_bytes is not null then
            perform quell.refuse('key', 'is missing: min, max, max_triggers and max_bytes go with it');
        end if;
        return 'null';
    end if;
    perform quell.check_key('key', key);
    if (min is null) <> (max is null) and not (edge = 'throttle' and max is null) then
        perform quell.refuse(case when min is null then 'min' else 'max' end,
                             'is missing: give min and max, or neither');
    end if;
    if edge = 'throttle' then
        max := coalesce(max, min);
    end if;
    if min > max then
        perform quell.refuse('min', format('%s is longer than max %s', min, max));
    end if;
    if max_triggers < 1 then
        perform quell.refuse('max_triggers', format('is %s: give 1 or more', max_triggers));
    end if;
    if max_bytes not between 1 and 16777216 then
        perform quell.refuse('max_bytes', format('is %s: give 1 to 16777216', max_bytes));
    end if;
    if edge is null or edge not in ('trailing', 'leading', 'both', 'throttle') then
        perform quell.refuse('edge', format('is %L: give trailing, leading, both or throttle', edge));
    end if;
    return format(
        '{"key":%s,"debounce":{"thresholds":{"min":%s,"max":%s},"from_default":%s,'
        '"max_triggers":%s,"max_bytes":%s,"edge":%s,"overlap":%s}}',
        to_json(key), quell.span('min', coalesce(min, interval '10 s')),
        quell.span('max', coalesce(max, interval '60 s')), to_json(min is null),
        coalesce(max_triggers::text, 'null'), coalesce(max_bytes::text, 'null'), to_json(edge),
        to_json(coalesce("overlap", false)));
end
$$;

create function quell.trigger_json(
    task text, payload text, queue text, key text, min interval, max interval,
    max_triggers integer, max_bytes integer, edge text, "overlap" boolean, fold text,
    fold_cap integer, fold_fields text[], priority integer, partition text, delay interval, run_at timestamptz, dedup text,
    dedup_ttl interval, dedup_until text
) returns text language plpgsql volatile as $$
#variable_conflict use_variable
declare
    due text := '"now"';
begin
    perform quell.check_name('task', task);
    perform quell.check_name('queue', queue);
    if payload is null then
        perform quell.refuse('payload', 'is null: give JSON, ''null'' for none');
    end if;
    if octet_length(payload) > 1048576 then
        perform quell.refuse('payload', format(
            'has %s bytes, the limit is 1048576: send a reference instead', octet_length(payload)));
    end if;
    begin
        perform payload::json;
    exception when others then
        perform quell.refuse('payload', 'is not JSON: ' || sqlerrm);
    end;
    if priority is null or priority not between -32768 and 32767 then
        perform quell.refuse('priority', format('is %s: give -32768 to 32767', priority));
    end if;
    perform quell.check_key('partition', partition);
    if delay is not null and run_at is not null then
        perform quell.refuse('run_at', 'and delay were both given: give one');
    elsif delay is not null then
        due := format('{"after":%s}', quell.span('delay', delay));
    elsif run_at is not null then
        if not isfinite(run_at) then
            perform quell.refuse('run_at', format('is %s: give a moment', run_at));
        end if;
        -- The last moment that the store's clock can represent.
        if extract(epoch from run_at) > 9223372036854 then
            perform quell.refuse('run_at', format('is %s: give a moment before the year 294247',
                                                  run_at));
        end if;
        due := format('{"at":%s}', (extract(epoch from run_at) * 1000000)::bigint);
    end if;
    perform quell.check_delay(queue, key, min, max, delay, run_at);
    return format(
        '{"task":%s,"queue":%s,"partition":%s,"payload":%s,"priority":%s,"when":%s,"keyed":%s,'
        '"fold":%s,"dedup":%s}',
        to_json(task), to_json(queue), coalesce(to_json(partition)::text, 'null'), payload,
        priority, due,
        quell.keyed_json(key, min, max, max_triggers, max_bytes, edge, "overlap"),
        quell.fold_json(fold, fold_cap, fold_fields),
        quell.dedup_json(dedup, dedup_ttl, dedup_until));
end
$$;

-- Triggers a task.
create function quell.trigger(
    task text, payload text default 'null', queue text default 'default', key text default null,
    min interval default null, max interval default null, max_triggers integer default null,
    edge text default 'trailing', "overlap" boolean default false, fold text default 'last',
    fold_cap integer default null, fold_fields text[] default null, priority integer default 0,
    partition text default null, delay interval default null, run_at timestamptz default null, dedup text default null,
    dedup_ttl interval default null, dedup_until text default null, max_bytes integer default null
) returns void language sql volatile security definer
set search_path = pg_catalog, pg_temp as $$
    select quell.put('[[' || quell.trigger_json(
        task, payload, queue, key, min, max, max_triggers, max_bytes, edge, "overlap", fold, fold_cap,
        fold_fields, priority, partition, delay, run_at, dedup, dedup_ttl, dedup_until) || '],null]')
$$;

-- The same for payloads that are JSON values already.
create function quell.trigger(
    task text, payload json, queue text default 'default', key text default null,
    min interval default null, max interval default null, max_triggers integer default null,
    edge text default 'trailing', "overlap" boolean default false, fold text default 'last',
    fold_cap integer default null, fold_fields text[] default null, priority integer default 0,
    partition text default null, delay interval default null, run_at timestamptz default null, dedup text default null,
    dedup_ttl interval default null, dedup_until text default null, max_bytes integer default null
) returns void language sql volatile security definer
set search_path = pg_catalog, pg_temp as $$
    select quell.trigger(
        task, payload::text, queue, key, min, max, max_triggers, edge, "overlap", fold, fold_cap,
        fold_fields, priority, partition, delay, run_at, dedup, dedup_ttl, dedup_until, max_bytes)
$$;

create function quell.trigger(
    task text, payload jsonb, queue text default 'default', key text default null,
    min interval default null, max interval default null, max_triggers integer default null,
    edge text default 'trailing', "overlap" boolean default false, fold text default 'last',
    fold_cap integer default null, fold_fields text[] default null, priority integer default 0,
    partition text default null, delay interval default null, run_at timestamptz default null, dedup text default null,
    dedup_ttl interval default null, dedup_until text default null, max_bytes integer default null
) returns void language sql volatile security definer
set search_path = pg_catalog, pg_temp as $$
    select quell.trigger(
        task, payload::text, queue, key, min, max, max_triggers, edge, "overlap", fold, fold_cap,
        fold_fields, priority, partition, delay, run_at, dedup, dedup_ttl, dedup_until, max_bytes)
$$;

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

-- R5: triggers many, all or none: an array of objects whose members are named as the arguments of
-- trigger, and each may have an idempotency key (R19). A dedup key here is the batch's as a whole (R17).
create function quell.trigger_many(
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

create function quell.trigger_many(
    triggers jsonb, dedup text default null, dedup_ttl interval default null,
    dedup_until text default null
) returns void language sql volatile security definer
set search_path = pg_catalog, pg_temp as $$
    select quell.trigger_many(triggers::json, dedup, dedup_ttl, dedup_until)
$$;

create function quell.trigger_many(
    triggers text, dedup text default null, dedup_ttl interval default null,
    dedup_until text default null
) returns void language sql volatile security definer
set search_path = pg_catalog, pg_temp as $$
    select quell.trigger_many(triggers::json, dedup, dedup_ttl, dedup_until)
$$;

-- Gives a role what its part needs: `producer` may trigger and nothing else, `reader` may look,
-- `worker` may do all that a store does. Run it as the schema's owner.
create function quell.grant_part(part text, grantee name) returns void
language plpgsql volatile as $$
declare
    f regprocedure;
    home text := quote_ident('{schema}');
begin
    if part not in ('producer', 'reader', 'worker') then
        perform quell.refuse('part', format('is %L: give producer, reader or worker', part));
    end if;
    execute format('grant usage on schema %s to %I', home, grantee);
    execute format('grant select on table %s.meta to %I', home, grantee);
    for f in select oid::regprocedure from pg_proc
              where pronamespace = quote_ident('{schema}')::regnamespace
                and (part = 'worker'
                     or part = 'producer' and proname in ('trigger', 'trigger_many', 'put')
                     or part = 'reader' and proname in ('peek', 'reckon'))
    loop
        execute format('grant execute on function %s to %I', f, grantee);
    end loop;
    if part = 'reader' then
        execute format('grant select on all tables in schema %s to %I', home, grantee);
        execute format('grant select on all sequences in schema %s to %I', home, grantee);
    elsif part = 'worker' then
        execute format('grant select, insert, update, delete on all tables in schema %s to %I',
                       home, grantee);
        execute format('grant usage, select, update on all sequences in schema %s to %I',
                       home, grantee);
    end if;
end
$$;

-- No role may do what was not granted.
do $$
declare
    f regprocedure;
begin
    for f in select oid::regprocedure from pg_proc where pronamespace = quote_ident('{schema}')::regnamespace loop
        execute format('revoke all on function %s from public', f);
    end loop;
end
$$;
