-- What Quell's script calls for plain triggers, without its rules.
--
-- KEYS: names, the clock, the newest number, jobs, the line, the heads of lines, counts. ARGV: rows.
redis.call('HGET', KEYS[1], 'version')
redis.call('GET', KEYS[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local newest = tonumber(redis.call('GET', KEYS[3]) or '0')
local rows, line = {}, {}
for n, row in ipairs(ARGV) do
  rows[2 * n - 1], rows[2 * n] = newest + n, row
  line[2 * n - 1], line[2 * n] = now, newest + n
end
redis.call('SET', KEYS[3], newest + #ARGV)
redis.call('HSET', KEYS[4], unpack(rows))
redis.call('ZADD', KEYS[5], unpack(line))
redis.call('ZADD', KEYS[6], 'LT', now, 'line')
redis.call('HINCRBY', KEYS[7], 'queue task 0', #ARGV)
redis.call('PUBLISH', 'plain:wake', 'origin ' .. now .. ' queue')
redis.call('SET', KEYS[2], now)
return newest
