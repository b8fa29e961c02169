-- Keeps a text under a field of KEYS[1] unless there is one; answers with the one that is there.
-- It is written once more, so that a call that waits for replicas waits for it whichever call wrote it first, and
-- `PERSIST`, which changes nothing, lets the script go on although the memory is full.
wrote = true
redis.call('PERSIST', KEYS[1])
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
local known = redis.call('HGET', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], known)
return known
