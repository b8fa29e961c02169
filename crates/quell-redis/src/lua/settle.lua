-- Ends attempts that succeeded (R21), and lets the windows of their keys start (R11).
--
-- KEYS[4..10] are leases, ended jobs, counts, slots, what runs of keys, the windows that wait, and
-- the jobs whose ends are awaited; further ones are named by their number. Asked are where hints go
-- (channel, origin), the lanes in which windows may be, the groups of the ends, and the ends, one after
-- the other.
-- Answers for each end with 1, with 0 where the lease is lost, or with 2 where the end is left to the
-- caller, and then with the queues in which something may start, and when.
local channel, origin, lanes, groups, ends = unpack(asked)
-- A lane: its number, heads, line, name there, queue.
local NUMBER, HEADS, LINE, NAME, QUEUE = 1, 2, 3, 4, 5
-- What ends have in common: queue, task, worker, both parts of the token, whether the queue is to be
-- notified of each end (R31), and for jobs that run for the first time their start and the end of the lease.
local OF_QUEUE, TASK, AT, STARTED_AS, DRAWN, IS_NOTIFIED, SINCE, UNTIL = 1, 2, 3, 4, 5, 6, 7, 8
-- An end: job, group, output, partition, key, the hash of its window.
local WIDTH = 6

local lane_of = {}
for _, lane in ipairs(lanes) do lane_of[lane[NUMBER]] = lane end

local ids, number_of = {}, {}
for number = 1, #ends / WIDTH do
  local id = ends[WIDTH * number - WIDTH + 1]
  ids[number], number_of[id] = id, number
end
local kept = rows_as_kept(ids)

-- Rows that were read or written, and those to be written.
local rows, changed, written = {}, {}, {}
local function row_of(id)
  if rows[id] == nil then
    local number = number_of[id]
    local bytes = number and kept[number]
    if not number then bytes = redis.call('HGET', KEYS[3], id) end
    -- What cannot be written back as it was is the caller's.
    rows[id] = not bytes and 'none' or read_row(bytes) or 'left'
  end
  return rows[id]
end

-- The jobs of a key that run beside this one; none where the key has closed windows (R10): then
-- the id of the first one begins the field, after a c.
local function others_of(field, id)
  local busy = redis.call('HGET', KEYS[8], field) or ''
  if string.sub(busy, 1, 1) == 'c' then return nil end
  local others = {}
  for other in string.gmatch(busy, '%d+') do
    if other ~= id then others[#others + 1] = other end
  end
  return others
end

local wakes, by_partition, lost, over, ended = {}, {}, {}, {}, 0
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
local function end_of_key(group, id, key, hash)
  local field = group[TASK] .. ' ' .. key
  local others = others_of(field, id)
  -- Only the caller knows which window comes next.
  if not others then return true end
  local shown = redis.call('HGET', KEYS[hash], 'message_id')
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
    redis.call('HSET', KEYS[hash], 'executed', '1')
    redis.call('EXPIRE', KEYS[hash], 3600)
  end
  return false
end

-- A job that runs for the first time, as the caller was given it, is not decoded: an end would take 1.3
-- to 1.9 times the server's processor time. Its row ends as start.lua wrote it, with attempt, starts,
-- draw, worker, lease and start. Once it has succeeded, it has no lease, and after its start come its
-- end and its output.
local FIRST_RUN = string.char(220, 0, STARTED, RUNNING)
local SUCCESS = string.char(220, 0, ENDED, SUCCEEDED)
local WITH_OUTPUT = string.char(220, 0, OUTPUT, SUCCEEDED)
for _, group in ipairs(groups) do
  group.ended = 0
  if group[SINCE] then
    local times = cmsgpack.pack(group[UNTIL], group[SINCE])
    group.tail = cmsgpack.pack(1, 1, group[DRAWN], group[AT]) .. times
    group.before_times, group.ending = -1 - #times, cmsgpack.pack(nil, group[SINCE], now)
  end
end
local function runs_first(bytes, group)
  local tail = group.tail
  return tail and string.sub(bytes, 1, 4) == FIRST_RUN and string.sub(bytes, -#tail) == tail
end

-- Ends the attempt of a decoded row. Answers as the script does, and with the partition.
local function settle_row(id, group, output, key, hash)
  local row = row_of(id)
  if row == 'left' then return 2 end
  local is_held = row ~= 'none' and row[STATE] == RUNNING and row[STARTS] == group[STARTED_AS]
    and row[DRAW] == group[DRAWN] and row[LEASE] and now < row[LEASE]
  if not is_held then return 0 end
  if row[WORKER] ~= group[AT] or (row[KEY] or false) ~= key then return 2 end
  if key and end_of_key(group, id, key, hash) then return 2 end
  row[STATE], row[WAITS], row[FAILURES] = SUCCEEDED, false, 0
  row[OUTPUT], row[LEASE], row[ENDED] = output or nil, nil, now
  changed[id] = true
  return 1, row[PARTITION]
end

go_on()
local answers = { now_text }
local is_awaited = redis.call('EXISTS', KEYS[10]) == 1
local writes = 0
for number = 1, #ids do
  local id, at = ids[number], WIDTH * number - WIDTH
  local group, output, partition = groups[ends[at + 2]], ends[at + 3], ends[at + 4]
  local key, hash, bytes, became = ends[at + 5], ends[at + 6], kept[number], 1
  if bytes and not rows[id] and runs_first(bytes, group) then
    if now >= group[UNTIL] then
      became = 0
    elseif key and end_of_key(group, id, key, hash) then
      became = 2
    else
      written[writes + 1] = id
      written[writes + 2] = (output and WITH_OUTPUT or SUCCESS)
        .. string.sub(bytes, 5, group.before_times)
        .. group.ending .. (output and cmsgpack.pack(output) or '')
      writes = writes + 2
      -- It has ended: another end of it comes too late.
      rows[id] = 'none'
    end
  else
    became, partition = settle_row(id, group, output, key, hash)
  end
  answers[number + 1] = became
  if became == 1 then
    group.ended = group.ended + 1
    if partition then
      local slot = group[OF_QUEUE] .. ' p ' .. partition
      by_partition[slot] = (by_partition[slot] or 0) + 1
    end
    ended = ended + 1
    lost[ended] = member(id)
    over[2 * ended - 1], over[2 * ended] = now_text, lost[ended]
    if is_awaited and redis.call('SREM', KEYS[10], id) == 1 then
      redis.call('PUBLISH', channel, origin .. ' ended ' .. id)
    end
  end
end
if ended == 0 then return answers end

wrote = true
for id in pairs(changed) do
  written[#written + 1], written[#written + 2] = id, write_row(rows[id])
end
many('HSET', KEYS[3], written)
many('ZREM', KEYS[4], lost)
many('ZADD', KEYS[5], over)
local notified = {}
for _, group in ipairs(groups) do
  if group.ended > 0 then
    local queue, counts = group[OF_QUEUE], group[OF_QUEUE] .. ' ' .. group[TASK] .. ' '
    count(KEYS[6], counts .. RUNNING, -group.ended)
    count(KEYS[6], counts .. SUCCEEDED, group.ended)
    count(KEYS[7], queue, -group.ended)
    count(KEYS[7], queue .. ' w ' .. group[AT], -group.ended)
    if group[IS_NOTIFIED] and not notified[queue] then
      notified[queue] = true
      wake(queue, -9223372036854775808)
      -- A call that has counted what runs must count again.
      count(KEYS[7], queue .. ' n', 1)
    end
  end
end
for slot, by in pairs(by_partition) do count(KEYS[7], slot, -by) end
publish(channel, origin, wakes)
append_wakes(answers, wakes)
raise_clock()
return answers
