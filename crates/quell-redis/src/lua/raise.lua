-- Keeps a number under a field of KEYS[1] unless there is one that is not below it; answers with the
-- one that is there.
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
local known = redis.call('HGET', KEYS[1], ARGV[1])
local number = tonumber(known)
if number and number < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  return tonumber(ARGV[2])
end
return number or known
