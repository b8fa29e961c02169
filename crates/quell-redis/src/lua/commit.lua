-- One atomic step: every write, if everything that was read for it is still so.
--
-- KEYS[1] is the clock, the others are named by their number. ARGV[1] is the time of the step in
-- microseconds, ARGV[2] the checks and ARGV[3] the writes, in MessagePack, ARGV[4] `grows` where it
-- makes jobs. Answers with 0, or with the number of the first check that failed, before anything was
-- written.
for number, check in ipairs(cmsgpack.unpack(ARGV[2])) do
  local key, field, expected, members = KEYS[check[1]], check[2], check[3], check[4]
  local found
  if members then
    -- The first members of a sorted set, this number of them.
    found = table.concat(redis.call('ZRANGE', key, 0, members - 1), ' ')
  elseif field then
    found = redis.call('HGET', key, field)
  else
    found = redis.call('GET', key)
  end
  -- Of long values the hash was sent.
  if found and expected and #found > 40 then found = redis.sha1hex(found) end
  if found ~= expected then return number end
end

wrote = true
-- A script that has begun to write is let go on although the memory is full. This writes nothing.
if ARGV[4] ~= 'grows' then redis.call('PERSIST', KEYS[1]) end
for _, write in ipairs(cmsgpack.unpack(ARGV[3])) do
  local kind, key = write[1], KEYS[write[2]]
  if kind == 'hset' then
    redis.call('HSET', key, write[3], write[4])
  elseif kind == 'hdel' then
    redis.call('HDEL', key, write[3])
  elseif kind == 'hincr' then
    -- What has come to nothing takes no room.
    if redis.call('HINCRBY', key, write[3], write[4]) == 0 then
      redis.call('HDEL', key, write[3])
    end
  elseif kind == 'zadd' then
    redis.call('ZADD', key, write[4], write[3])
  elseif kind == 'zrem' then
    redis.call('ZREM', key, write[3])
  elseif kind == 'head' then
    -- The head of a line, among the heads of its queue.
    local head = redis.call('ZRANGE', KEYS[write[3]], 0, 0, 'WITHSCORES')
    if head[2] then
      redis.call('ZADD', key, head[2], write[4])
    else
      redis.call('ZREM', key, write[4])
    end
  elseif kind == 'busy' then
    -- R10, R11: the running jobs of a key, after the first of its closed windows.
    local first = redis.call('ZRANGE', KEYS[write[3]], 0, 0)[1]
    local busy = write[5]
    if first then busy = 'c' .. string.sub(first, 2) .. (busy ~= '' and ' ' or '') .. busy end
    if busy ~= '' then
      redis.call('HSET', key, write[4], busy)
    else
      redis.call('HDEL', key, write[4])
    end
  elseif kind == 'sadd' then
    redis.call('SADD', key, write[3])
  elseif kind == 'srem' then
    redis.call('SREM', key, write[3])
  elseif kind == 'push' then
    redis.call('LPUSH', key, write[3])
    redis.call('LTRIM', key, 0, write[4])
  elseif kind == 'set' then
    redis.call('SET', key, write[3])
  elseif kind == 'expire' then
    redis.call('EXPIRE', key, write[3])
  elseif kind == 'persist' then
    redis.call('PERSIST', key)
  elseif kind == 'del' then
    -- A large one is freed in the background.
    redis.call('UNLINK', key)
  elseif kind == 'show' then
    -- R15: the newest ticks of a schedule among the triggers of a job, after the id of the schedule's
    -- record. Those with another id are of a schedule that was deleted.
    local schedule, id, most, ticks = write[3], write[4], write[5], write[6]
    local words = string.gmatch(redis.call('HGET', key, schedule) or '', '%S+')
    if words() == id then
      for tick in words do ticks[#ticks + 1] = tick end
    end
    local function time(tick) return tonumber(string.match(tick, '%-?%d+')) end
    table.sort(ticks, function(one, other) return time(one) > time(other) end)
    ticks = table.concat(ticks, ' ', 1, math.min(#ticks, most))
    redis.call('HSET', key, schedule, id .. ' ' .. ticks)
  elseif kind == 'ended' then
    -- Only where a process waits for it.
    if redis.call('SREM', key, write[3]) == 1 then
      redis.call('PUBLISH', write[4], write[5])
    end
  elseif kind == 'publish' then
    redis.call('PUBLISH', write[3], write[4])
  end
end

local clock = tonumber(redis.call('GET', KEYS[1]) or '-9007199254740992')
if tonumber(ARGV[1]) > clock then redis.call('SET', KEYS[1], ARGV[1]) end
return 0
