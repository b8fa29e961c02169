-- Ends attempts that succeeded (R21), and lets the windows of their keys start (R11).
--
-- KEYS[4..10] are leases, ended jobs, counts, slots, what runs of keys, the windows that wait, and
-- the jobs whose ends are awaited; further ones are named by their number. Asked are where hints go
-- (channel, origin), the queues that are to be told of each end (R31), the lanes in which windows
-- may be, and the ends. Answers for each end with 1, with 0 where the lease is lost, or with 2 where
-- the end is left to the caller, and then with the queues in which something may start, and when.
local channel, origin, told, lanes, ends = unpack(asked)
-- A lane: its number, heads, line, name there, queue.
local NUMBER, HEADS, LINE, NAME, QUEUE = 1, 2, 3, 4, 5
-- An end: job, token, output, queue, task, key, the hash of its window.
local JOB, TOKEN, RESULT, OF_QUEUE, TASK, OF_KEY, HASH = 1, 2, 3, 4, 5, 6, 7

local lane_of, tells = {}, {}
for _, lane in ipairs(lanes) do lane_of[lane[NUMBER]] = lane end
for _, queue in ipairs(told) do tells[queue] = true end

-- Rows that were read, and those to be written.
local rows, changed = {}, {}
local function row_of(id)
  if rows[id] == nil then
    local bytes = redis.call('HGET', KEYS[3], id)
    -- What cannot be written back as it was is the caller's.
    rows[id] = not bytes and 'none' or read_row(bytes) or 'left'
  end
  return rows[id]
end

-- The jobs of a key that run beside this one.
local function others_of(field, id)
  local others = {}
  for other in string.gmatch(redis.call('HGET', KEYS[8], field) or '', '%d+') do
    if other ~= id then others[#others + 1] = other end
  end
  return others
end

local wakes, by_count, by_slot, lost, over = {}, {}, {}, {}, {}
local function add(sums, field, by)
  sums[field] = (sums[field] or 0) + by
end
local function wake(queue, due)
  if not wakes[queue] or due < wakes[queue] then wakes[queue] = due end
end

-- R11: the window of the key may start.
local function free(id, row)
  local lane = lane_of[row[LANE]]
  local due = row[FIRST] + row[DUE]
  row[WAITS] = false
  changed[id] = true
  redis.call('ZREM', KEYS[9], member(id))
  redis.call('ZADD', KEYS[lane[LINE]], string.format('%.0f', due), member(id))
  redis.call('ZADD', KEYS[lane[HEADS]], 'LT', string.format('%.0f', due), lane[NAME])
  wake(lane[QUEUE], due)
end

-- The end of a keyed job: says whether it is left to the caller.
local function end_of_key(item, id)
  local field = item[TASK] .. ' ' .. item[OF_KEY]
  local others, shown = others_of(field, id), redis.call('HGET', KEYS[item[HASH]], 'message_id')
  local window = #others == 0 and shown and shown ~= id and row_of(shown)
  if window == 'left' then return true end
  local waits = window and window ~= 'none' and window[STATE] == SCHEDULED and window[WAITS]
  -- Only the caller knows the lines of partitions.
  if waits and (window[PARTITION] or not lane_of[window[LANE]]) then return true end
  if waits then free(shown, window) end
  if #others == 0 then
    redis.call('HDEL', KEYS[8], field)
  else
    redis.call('HSET', KEYS[8], field, table.concat(others, ' '))
  end
  if shown == id then
    redis.call('HSET', KEYS[item[HASH]], 'executed', '1')
    redis.call('EXPIRE', KEYS[item[HASH]], 3600)
  end
  return false
end

local function settle(item)
  local id = item[JOB]
  local row = row_of(id)
  if row == 'left' then return 2 end
  local is_held = row ~= 'none' and row[STATE] == RUNNING and row[STARTS] == item[TOKEN]
    and row[LEASE] and now < row[LEASE]
  if not is_held then return 0 end
  if row[KEY] and (row[KEY] ~= item[OF_KEY] or end_of_key(item, id)) then return 2 end
  local queue, counts = item[OF_QUEUE], item[OF_QUEUE] .. ' ' .. item[TASK] .. ' '
  add(by_count, counts .. RUNNING, -1)
  add(by_count, counts .. SUCCEEDED, 1)
  add(by_slot, queue, -1)
  add(by_slot, queue .. ' w ' .. row[WORKER], -1)
  if row[PARTITION] then add(by_slot, queue .. ' p ' .. row[PARTITION], -1) end
  row[STATE], row[WAITS], row[FAILURES] = SUCCEEDED, false, 0
  row[OUTPUT], row[LEASE], row[ENDED] = item[RESULT] or nil, nil, now
  changed[id] = true
  lost[#lost + 1] = member(id)
  over[#over + 1], over[#over + 2] = now_text, member(id)
  if tells[queue] then
    wake(queue, -9223372036854775808)
    add(by_slot, queue .. ' n', 1)
  end
  return 1
end

local answers, awaited = { now_text }, redis.call('EXISTS', KEYS[10]) == 1
for _, item in ipairs(ends) do
  local became = settle(item)
  answers[#answers + 1] = became
  if became == 1 and awaited and redis.call('SREM', KEYS[10], item[JOB]) == 1 then
    redis.call('PUBLISH', channel, origin .. ' ended ' .. item[JOB])
  end
end
if #over == 0 then return answers end

wrote = true
-- As in commit.lua: this goes on although the memory is full.
redis.call('PERSIST', KEYS[1])
local written = {}
for id in pairs(changed) do
  written[#written + 1], written[#written + 2] = id, write_row(rows[id])
end
many('HSET', KEYS[3], written)
many('ZREM', KEYS[4], lost)
many('ZADD', KEYS[5], over)
for field, by in pairs(by_count) do count(KEYS[6], field, by) end
for field, by in pairs(by_slot) do count(KEYS[7], field, by) end
tell(channel, origin, wakes)
tell_caller(answers, wakes)
raise_clock()
return answers
