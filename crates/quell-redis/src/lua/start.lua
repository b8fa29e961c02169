-- Starts the jobs that `claim.lua` chose, and leaves in Redis what the step would leave.
local read = rows_as_kept(chosen)
-- Of each job, where there is one: its decoded row, the field of what runs of its key, its shape.
local rows, fields, shapes, runs_of = {}, {}, {}, {}
for number, line in ipairs(line_of) do
  local bytes, lane, shape, key, _ = read[number], nil, nil, nil, nil
  if bytes and not line.partition and is_short(bytes) then
    _, _, lane, _, _, _, _, _, _, shape, key = cmsgpack.unpack_limit(bytes, KEY, 1)
  else
    local row = bytes and read_row(bytes)
    local may_start = row and row[STATE] == SCHEDULED and not row[WAITS]
      and (row[PARTITION] or false) == line.partition
    if not may_start then return GENERAL end
    rows[number], lane, shape, key = row, row[LANE], row[SHAPE], row[KEY]
  end
  if lane ~= line.lane[NUMBER] then return GENERAL end
  if key then
    fields[number], shapes[number] = line.lane[TASK] .. ' ' .. key, shape
    runs_of[#runs_of + 1] = fields[number]
  end
end
local running_of = {}
if #runs_of > 0 then
  for number, others in ipairs(redis.call('HMGET', KEYS[7], unpack(runs_of))) do
    -- A key with closed windows (R10) is the caller's: the first one's id begins the field, after a c.
    if others and string.sub(others, 1, 1) == 'c' then return GENERAL end
    running_of[runs_of[number]] = others
  end
end

go_on()
wrote = true
local until_text = string.format('%.0f', now + length)
local period_of = {}
for _, shape in ipairs(remembered) do period_of[shape[1]] = shape[2] end
local written, leases, memories, expiry, begun = {}, {}, {}, {}, {}
-- What follows the first fields of a job that starts for the first time. Short rows are neither decoded
-- nor encoded: a claim would take 1.3 to 1.7 times the server's processor time.
local first_start = cmsgpack.pack(false, nil, nil, nil, 1, 1, draw, worker, now + length, now)
local first_head = string.char(220, 0, STARTED, RUNNING)
local function started_row(row)
  row[STATE], row[ATTEMPT] = RUNNING, row[ATTEMPT] + 1
  row[STARTS], row[DRAW] = math.min(row[STARTS] + 1, MOST_STARTS), draw
  row[WORKER], row[STARTED], row[LEASE] = worker, now, now + length
  return write_row(row)
end
-- What is done for a keyed job besides.
local function start_key(id, field, period)
  local others = running_of[field]
  running_of[field] = others and others .. ' ' .. id or id
  -- R13: a throttled key starts once in a period.
  if not period then return end
  local over = string.format('%.0f', now + period)
  memories[#memories + 1], memories[#memories + 2] = field, string.format(
    '{"burst_at":%s,"last_at":%s,"started_at":%s,"leader":"%s","expires_at":%s}',
    now_text, now_text, now_text, id, over)
  expiry[#expiry + 1], expiry[#expiry + 2] = over, 'm ' .. field
end
for number, id in ipairs(chosen) do
  local row = rows[number]
  -- R41: it waits no longer to start again.
  if row and row[PARTITION] and row[STARTS] > 0 then
    begun[#begun + 1] = member(id) .. ' ' .. line_of[number].name
  end
  written[2 * number - 1] = id
  written[2 * number] = row and started_row(row)
    or first_head .. string.sub(read[number], 3) .. first_start
  leases[2 * number - 1], leases[2 * number] = until_text, member(id)
  if fields[number] then start_key(id, fields[number], period_of[shapes[number]]) end
end
many('HSET', KEYS[3], written)
many('ZADD', KEYS[4], leases)
many('ZREM', KEYS[12], begun)

local runs = {}
for field, running in pairs(running_of) do
  if running then runs[#runs + 1], runs[#runs + 2] = field, running end
end
many('HSET', KEYS[7], runs)

local moved, emptied = {}, {}
local by_partition, counted = {}, {}
local slots = { [queue] = #chosen, [queue .. ' w ' .. worker] = #chosen }
local function add(sums, field, by)
  sums[field] = (sums[field] or 0) + by
end
for _, line in ipairs(touched) do
  many('ZREM', key_of[line.name], line.taken)
  local counts = queue .. ' ' .. line.lane[TASK] .. ' '
  add(counted, counts .. SCHEDULED, -line.count)
  add(counted, counts .. RUNNING, line.count)
  if line.partition then
    add(by_partition, line.partition, line.count)
    add(slots, queue .. ' p ' .. line.partition, line.count)
  end
  if line.due then
    moved[#moved + 1], moved[#moved + 2] = line.score, line.name
  else
    emptied[#emptied + 1] = line.name
  end
  line.first = line.due
end
many('ZADD', KEYS[8], moved)
many('ZREM', KEYS[8], emptied)

-- What has come to nothing takes no room.
local function count_all(key, sums)
  local fields, there, gone = {}, {}, {}
  for field in pairs(sums) do fields[#fields + 1] = field end
  for place, was in ipairs(redis.call('HMGET', key, unpack(fields))) do
    local field = fields[place]
    local is = tonumber(was or 0) + sums[field]
    if is == 0 then
      gone[#gone + 1] = field
    else
      there[#there + 1], there[#there + 2] = field, string.format('%.0f', is)
    end
  end
  many('HSET', key, there)
  many('HDEL', key, gone)
end
-- A call that has counted what runs must count again.
if WHOLE or OF_WORKER or OF_PARTITION then slots[queue .. ' n'] = 1 end
count_all(KEYS[5], counted)
count_all(KEYS[6], slots)

-- R31: puts starts on record, beside those that count.
local logs = {}
local function record(log, field, by, period)
  local newest, runs = log[#log], {}
  if newest and newest[1] == now then
    newest[2] = newest[2] + by
    for place, run in ipairs(log) do
      runs[place] = string.format('[%.0f,%.0f]', run[1], run[2])
    end
  else
    -- Those that count stay as they are written: to format a thousand of them again takes a claim of
    -- one job 1.5 times the server's processor time.
    local from = 2
    for _ = 1, newest and log.over or 0 do
      from = string.find(log.text, '],', from, true) + 2
    end
    if newest then runs[1] = string.sub(log.text, from, -2) end
    runs[#runs + 1] = string.format('[%.0f,%.0f]', now, by)
    log[#log + 1] = { now, by }
  end
  log.count = log.count + by
  logs[#logs + 1], logs[#logs + 2] = field, '[' .. table.concat(runs, ',') .. ']'
  expiry[#expiry + 1], expiry[#expiry + 2] = string.format('%.0f', now + period), 's ' .. field
end
if log then record(log, queue, #chosen, PERIOD) end
for name, by in pairs(by_partition) do
  local used = partitions[name]
  if used then
    used.running = used.running + by
    if used.log then record(used.log, queue .. ' ' .. name, by, PARTITION_PERIOD) end
    room_of(used)
  end
end
many('HSET', KEYS[9], logs)
many('HSET', KEYS[10], memories)
many('ZADD', KEYS[11], expiry)

raise_clock()
-- Where not all lines were seen, others may be the first ones now.
if not heads[1].is_end then heads = {} end
return answer_with(written)
