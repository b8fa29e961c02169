-- KEYS: the open windows, this one. ARGV: when it is due, its payload.
redis.call('HSET', KEYS[2], 'task', 'meter', 'queue', 'default', 'payload', ARGV[2])
redis.call('ZADD', KEYS[1], ARGV[1], KEYS[2])
