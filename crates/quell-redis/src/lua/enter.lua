-- The number of the field ARGV[1] of KEYS[1]; it gets the next one where it has none, below ARGV[2].
-- Answers with 0 where there is none left. Written as in keep.lua.
wrote = true
redis.call('PERSIST', KEYS[1])
local number = redis.call('HGET', KEYS[1], ARGV[1])
if not number then
  number = redis.call('HINCRBY', KEYS[1], 'shards', 1)
  if number >= tonumber(ARGV[2]) then
    redis.call('HINCRBY', KEYS[1], 'shards', -1)
    return 0
  end
end
redis.call('HSET', KEYS[1], ARGV[1], number)
return tonumber(number)
