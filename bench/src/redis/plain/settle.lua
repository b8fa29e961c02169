-- The calls of Quell's script for attempts that succeeded, without its rules. The script finds the
-- jobs itself, as the benchmark does not know their ids.
--
-- KEYS: names, the clock, jobs, leases, ended jobs, counts, slots, awaited ends. ARGV: how many.
local ids = redis.call('ZRANGE', KEYS[4], 0, ARGV[1] - 1)
if #ids == 0 then return {} end
redis.call('HGET', KEYS[1], 'version')
redis.call('GET', KEYS[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local read = redis.call('HMGET', KEYS[3], unpack(ids))
redis.call('PERSIST', KEYS[2])
redis.call('EXISTS', KEYS[8])
local written, ended, answers = {}, {}, {}
for n, id in ipairs(ids) do
  written[2 * n - 1], written[2 * n] = id, read[n] .. 'ended'
  ended[2 * n - 1], ended[2 * n] = now, id
  answers[n] = 1
end
redis.call('HSET', KEYS[3], unpack(written))
redis.call('ZREM', KEYS[4], unpack(ids))
redis.call('ZADD', KEYS[5], unpack(ended))
for _, field in ipairs({ 'queue task 1', 'queue task 2' }) do
  redis.call('HINCRBY', KEYS[6], field, #ids)
end
for _, field in ipairs({ 'queue', 'queue w worker' }) do
  redis.call('HINCRBY', KEYS[7], field, #ids)
end
redis.call('SET', KEYS[2], now)
return answers
