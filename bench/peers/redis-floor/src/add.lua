-- KEYS: what is due, the last id. ARGV: the time, payloads.
for n = 2, #ARGV do
  local id = redis.call('INCR', KEYS[2])
  redis.call('HSET', 'job:' .. id, 'task', 'noop', 'queue', 'default', 'payload', ARGV[n])
  redis.call('ZADD', KEYS[1], ARGV[1], id)
end
