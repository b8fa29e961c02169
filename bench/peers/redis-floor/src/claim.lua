-- KEYS: what is due, what is claimed. ARGV: the time, how many at most. Answers with ids and payloads.
local ids = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
local claimed = {}
for n, id in ipairs(ids) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZADD', KEYS[2], ARGV[1], id)
  claimed[n] = { id, redis.call('HGET', 'job:' .. id, 'payload') }
end
return claimed
