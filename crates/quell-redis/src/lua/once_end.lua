end
local answer = script()
if wrote and place ~= '' then
  redis.call('HSET', KEYS[#KEYS], place, number)
  redis.call('EXPIRE', KEYS[#KEYS], 3600)
end
return answer
