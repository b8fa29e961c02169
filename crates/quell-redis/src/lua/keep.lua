-- Keeps a text under a field of KEYS[1] unless there is one; answers with the one that is there.
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGET', KEYS[1], ARGV[1])
