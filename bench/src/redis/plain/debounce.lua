-- What Quell's script calls for a trigger that joins its key's window, without its rules.
--
-- KEYS: names, the clock, the newest number, jobs, the line, the heads of lines, the window. ARGV: the
-- row.
redis.call('HGET', KEYS[1], 'version')
redis.call('GET', KEYS[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local newest = tonumber(redis.call('GET', KEYS[3]) or '0')
local window = redis.call('HMGET', KEYS[7], 'message_id', 'enqueue_timestamp')
local id = window[1]
if id then
  redis.call('HGET', KEYS[4], id)
else
  id = newest + 1
  redis.call('SET', KEYS[3], id)
  redis.call('HSET', KEYS[7], 'message_id', id, 'executed', '0')
end
if window[2] ~= time[1] then redis.call('HSET', KEYS[7], 'enqueue_timestamp', time[1]) end
redis.call('HSET', KEYS[4], id, ARGV[1])
redis.call('ZADD', KEYS[5], now + 3600000000, id)
local head = redis.call('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')
redis.call('ZADD', KEYS[6], head[2], 'line')
redis.call('SET', KEYS[2], now)
return id
