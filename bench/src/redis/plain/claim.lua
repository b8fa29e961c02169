-- What Quell's script calls to start jobs of a queue, without its rules.
--
-- KEYS: names, the clock, jobs, the line, the heads of lines, leases, counts, slots. ARGV: how many.
redis.call('HGET', KEYS[1], 'version')
redis.call('GET', KEYS[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZRANGE', KEYS[5], 0, 19, 'WITHSCORES')
local found = redis.call('ZRANGE', KEYS[4], 0, ARGV[1], 'WITHSCORES')
if #found == 0 then return {} end
local ids = {}
for place = 1, math.min(#found, 2 * ARGV[1]), 2 do ids[#ids + 1] = found[place] end
local read = redis.call('HMGET', KEYS[3], unpack(ids))
redis.call('PERSIST', KEYS[2])
local written, leases = {}, {}
for n, id in ipairs(ids) do
  written[2 * n - 1], written[2 * n] = id, read[n] .. 'worker, started, lease'
  leases[2 * n - 1], leases[2 * n] = now, id
end
redis.call('HSET', KEYS[3], unpack(written))
redis.call('ZADD', KEYS[6], unpack(leases))
redis.call('ZREM', KEYS[4], unpack(ids))
if #found > 2 * #ids then redis.call('ZADD', KEYS[5], found[#found], 'line') end
for _, counts in ipairs({ { KEYS[7], 'queue task 0', 'queue task 1' }, { KEYS[8], 'queue', 'queue w worker' } }) do
  local key, one, other = unpack(counts)
  local was = redis.call('HMGET', key, one, other)
  redis.call('HSET', key, one, (was[1] or 0) + #ids, other, (was[2] or 0) + #ids)
end
redis.call('SET', KEYS[2], now)
redis.call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')
return written
