-- One look at several rows, all of one moment, and the store's time.
--
-- KEYS[1] is the clock, the others are named by their number in the requests. ARGV[1] is the time
-- in microseconds, `server` for the server's own, or `last` for the highest seen; ARGV[2] the requests, in MessagePack.
local clock = tonumber(redis.call('GET', KEYS[1]) or '-9007199254740992')
local now = clock
if ARGV[1] == 'server' then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
elseif ARGV[1] ~= 'last' then
  now = tonumber(ARGV[1])
end
-- The store's time never goes back.
if now < clock then now = clock end
local answers = { string.format('%.0f', now) }
for number, request in ipairs(cmsgpack.unpack(ARGV[2])) do
  local kind, key = request[1], KEYS[request[2]]
  local answer
  if kind == 'h' then
    answer = redis.call('HMGET', key, unpack(request[3]))
  elseif kind == 'e' then
    answer = {}
    for at, field in ipairs(request[3]) do answer[at] = redis.call('HSTRLEN', key, field) end
  elseif kind == 'm' then
    answer = {}
    for at, member in ipairs(request[3]) do answer[at] = redis.call('ZSCORE', key, member) end
  elseif kind == 'a' then
    answer = redis.call('HGETALL', key)
  elseif kind == 'g' then
    answer = redis.call('GET', key)
  elseif kind == 's' then
    answer = redis.call('SMEMBERS', key)
  elseif kind == 'l' then
    answer = redis.call('LRANGE', key, 0, request[3])
  elseif kind == 'z' then
    -- Members by score, from the lowest, with their scores.
    answer = redis.call('ZRANGEBYSCORE', key, request[3], request[4], 'WITHSCORES', 'LIMIT', 0, request[5])
  elseif kind == 'p' then
    -- A portion by rank: after a member, or from the first of its score on where it has gone.
    local is_up, score, member, count = request[3], request[4], request[5], request[6]
    local found = member and redis.call('ZSCORE', key, member)
    local is_there = found and tonumber(found) == tonumber(score)
    local rank = is_there and redis.call('ZRANK', key, member)
    if is_up then
      rank = rank and rank + 1 or redis.call('ZCOUNT', key, '-inf', '(' .. score)
      answer = redis.call('ZRANGE', key, rank, rank + count - 1, 'WITHSCORES')
    else
      rank = rank and redis.call('ZCOUNT', key, '-inf', '+inf') - rank
        or redis.call('ZCOUNT', key, '(' .. score, '+inf')
      answer = redis.call('ZRANGE', key, rank, rank + count - 1, 'REV', 'WITHSCORES')
    end
  elseif kind == 't' then
    answer = redis.call('TIME')
  elseif kind == 'n' then
    answer = redis.call('HLEN', key)
  elseif kind == 'c' then
    -- The cursor, and the fields without their values.
    local scanned = redis.call('HSCAN', key, request[3], 'COUNT', request[4])
    answer = { scanned[1] }
    for at = 1, #scanned[2], 2 do answer[#answer + 1] = scanned[2][at] end
  elseif kind == 'd' then
    -- The cursor, and the pairs.
    local scanned = redis.call('HSCAN', key, request[3], 'COUNT', request[4])
    answer = scanned[2]
    table.insert(answer, 1, scanned[1])
  elseif kind == 'b' then
    -- Values of fields, up to this number of bytes.
    local left = request[4]
    answer = {}
    for at, field in ipairs(request[3]) do
      if left <= 0 then break end
      answer[at] = redis.call('HGET', key, field)
      left = left - (answer[at] and #answer[at] or 0)
    end
  elseif kind == 'i' then
    answer = redis.call('INCRBY', key, request[3])
  end
  answers[number + 1] = answer
end
return answers
