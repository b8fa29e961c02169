-- Ends attempts that succeeded (R21), and lets the windows of their keys start (R11).
--
-- KEYS[4..10] are leases, ended jobs, counts, slots, what runs of keys, the windows that wait, and
-- the jobs whose ends are awaited; further ones are named by their number. Asked are where hints go
-- (channel, origin), the lanes in which windows may be, the groups of the ends, and the ends.
-- Answers for each end with 1, with 0 where the lease is lost, or with 2 where the end is left to the
-- caller, and then with the queues in which something may start, and when.
local channel, origin, lanes, groups, ends = unpack(asked)
-- A lane: its number, heads, line, name there, queue.
local NUMBER, HEADS, LINE, NAME, QUEUE = 1, 2, 3, 4, 5
-- What ends have in common: queue, task, worker, token, whether the queue is to be told of each end
-- (R31), the end of the lease, and how rows of jobs that run for the first time end: with starts and
-- times, as start.lua wrote them.
local OF_QUEUE, TASK, AT, TOKEN, IS_TOLD, UNTIL, TAIL = 1, 2, 3, 4, 5, 6, 7
-- An end: job, group, output, partition, key, the hash of its window.
local JOB, GROUP, RESULT, OF_PARTITION, OF_KEY, HASH = 1, 2, 3, 4, 5, 6

local lane_of = {}
for _, lane in ipairs(lanes) do lane_of[lane[NUMBER]] = lane end

local ids = {}
for number, item in ipairs(ends) do ids[number] = item[JOB] end
local bytes_of = {}
for number, bytes in ipairs(rows_as_kept(ids)) do
  bytes_of[ids[number]] = bytes
end

-- Rows that were read, and those to be written.
local rows, changed, written = {}, {}, {}
local function row_of(id)
  if rows[id] == nil then
    local bytes = bytes_of[id]
    if bytes == nil then bytes = redis.call('HGET', KEYS[3], id) end
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

local wakes, by_partition, lost, over = {}, {}, {}, {}
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
  local field = groups[item[GROUP]][TASK] .. ' ' .. item[OF_KEY]
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

-- The row of a job that runs for the first time, once it has succeeded: its lease makes room for
-- nothing, and after its start come its end and what it answered.
local packed_now = cmsgpack.pack(now)
local function ended_row(bytes, output)
  local fields = output and 22 or 21
  return string.char(220, 0, fields, SUCCEEDED) .. string.sub(bytes, 5, -19) .. NIL
    .. string.sub(bytes, -9) .. packed_now .. (output and cmsgpack.pack(output) or '')
end

local first_run = string.char(220, 0, 20, RUNNING)
-- Whether the job runs as it did when the caller was given it; it is then not taken apart.
local function runs_first(id, group)
  local bytes, tail = bytes_of[id], group[TAIL]
  return tail and bytes and not rows[id] and string.sub(bytes, 1, 4) == first_run
    and string.sub(bytes, -#tail) == tail
end

local function settle(item)
  local id, group, partition = item[JOB], groups[item[GROUP]], item[OF_PARTITION]
  if runs_first(id, group) then
    if now >= group[UNTIL] then return 0 end
    if item[OF_KEY] and end_of_key(item, id) then return 2 end
    written[#written + 1], written[#written + 2] = id, ended_row(bytes_of[id], item[RESULT])
    -- It has ended: another end of it comes too late.
    rows[id] = 'none'
  else
    local row = row_of(id)
    if row == 'left' then return 2 end
    local is_held = row ~= 'none' and row[STATE] == RUNNING and row[STARTS] == group[TOKEN]
      and row[LEASE] and now < row[LEASE]
    if not is_held then return 0 end
    if row[WORKER] ~= group[AT] or (row[KEY] or false) ~= item[OF_KEY] then return 2 end
    if row[KEY] and end_of_key(item, id) then return 2 end
    row[STATE], row[WAITS], row[FAILURES] = SUCCEEDED, false, 0
    row[OUTPUT], row[LEASE], row[ENDED] = item[RESULT] or nil, nil, now
    changed[id] = true
    partition = row[PARTITION]
  end
  group.ended = (group.ended or 0) + 1
  if partition then
    local slot = group[OF_QUEUE] .. ' p ' .. partition
    by_partition[slot] = (by_partition[slot] or 0) + 1
  end
  local name = member(id)
  lost[#lost + 1] = name
  over[#over + 1], over[#over + 2] = now_text, name
  return 1
end

go_on()
local answers = { now_text }
local is_awaited = redis.call('EXISTS', KEYS[10]) == 1
for _, item in ipairs(ends) do
  local became = settle(item)
  answers[#answers + 1] = became
  if is_awaited and became == 1 and redis.call('SREM', KEYS[10], item[JOB]) == 1 then
    redis.call('PUBLISH', channel, origin .. ' ended ' .. item[JOB])
  end
end
if #over == 0 then return answers end

wrote = true
for id in pairs(changed) do
  written[#written + 1], written[#written + 2] = id, write_row(rows[id])
end
many('HSET', KEYS[3], written)
many('ZREM', KEYS[4], lost)
many('ZADD', KEYS[5], over)
local told = {}
for _, group in ipairs(groups) do
  if group.ended then
    local queue, counts = group[OF_QUEUE], group[OF_QUEUE] .. ' ' .. group[TASK] .. ' '
    count(KEYS[6], counts .. RUNNING, -group.ended)
    count(KEYS[6], counts .. SUCCEEDED, group.ended)
    count(KEYS[7], queue, -group.ended)
    count(KEYS[7], queue .. ' w ' .. group[AT], -group.ended)
    if group[IS_TOLD] and not told[queue] then
      told[queue] = true
      wake(queue, -9223372036854775808)
      -- Who has counted what runs must count anew.
      count(KEYS[7], queue .. ' n', 1)
    end
  end
end
for slot, by in pairs(by_partition) do count(KEYS[7], slot, -by) end
tell(channel, origin, wakes)
tell_caller(answers, wakes)
raise_clock()
return answers
