-- Keeps a number under a field of KEYS[1] unless there is one that is not below it; answers with the
-- one that is there. Written as in keep.lua.
wrote = true
redis.call('PERSIST', KEYS[1])
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
local known = redis.call('HGET', KEYS[1], ARGV[1])
local number = tonumber(known)
if number and number < tonumber(ARGV[2]) then known, number = ARGV[2], tonumber(ARGV[2]) end
redis.call('HSET', KEYS[1], ARGV[1], known)
return number or known
